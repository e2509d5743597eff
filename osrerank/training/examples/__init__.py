"""Training examples: reading, sampling and batching them."""
