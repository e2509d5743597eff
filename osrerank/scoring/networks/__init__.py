"""The networks that torch computes: BERT without padding, attention, the layout cross-bias, weights and their names."""
