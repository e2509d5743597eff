"""Checkpoints in the forms of the papers' years, converted once: pickled weights, vocabularies, TensorFlow's."""
