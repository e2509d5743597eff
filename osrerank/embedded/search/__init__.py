"""Carrying out a search: hits, sorting, highlights, aggregations, term vectors."""
