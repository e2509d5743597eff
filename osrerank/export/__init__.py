"""From a checkpoint to what the workers and clients load: graphs, int8 with calibrated or fixed scales, the card."""
