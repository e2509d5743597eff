"""Send the texts of a search to workers, and receive their scores: the client side of ``backend="workers"``."""
