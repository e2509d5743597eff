"""Plan the first pass: its request, the expansion of its query, and the fields that are searched and reranked."""
