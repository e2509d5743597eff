"""Load, average and write the models of a training."""
