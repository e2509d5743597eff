"""The networks that torch computes: BERT without padding, attention, bi-encoders, weights and their names."""
