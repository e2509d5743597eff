"""A search carried out: hits, sorting, highlights, aggregations, term vectors."""
