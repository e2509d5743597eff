"""Vectors of texts, for searches by nearest neighbours."""
