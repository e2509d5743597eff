"""Documents and their search index on disk: one writer, many readers."""
