"""Models to be trained: read from a checkpoint, averaged, written with a README."""
