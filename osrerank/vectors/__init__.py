"""Compute the vectors of documents once, and store them for every later search."""
