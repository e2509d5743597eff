"""Let Elasticsearch itself rerank: install the inference endpoint that its searches call, and remove it."""
