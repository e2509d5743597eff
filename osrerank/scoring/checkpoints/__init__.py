"""Convert checkpoints in old formats: pickled PyTorch weights, TensorFlow checkpoints, and ``vocab.txt`` files."""
