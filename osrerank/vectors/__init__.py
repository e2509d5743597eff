"""Compute the vectors of documents once, and store them for all later searches."""
