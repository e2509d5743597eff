"""Score and encode texts: models, their inputs, batches and backends."""
