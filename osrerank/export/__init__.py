"""From a checkpoint to what clients and workers load: graphs, int8 with dynamic or fixed scales, the card."""
