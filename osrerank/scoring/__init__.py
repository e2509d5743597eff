"""Texts in, floats out: models, inputs, batches, backends."""
