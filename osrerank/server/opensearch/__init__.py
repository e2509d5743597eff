"""Let OpenSearch itself rerank: install the search pipeline that its searches run, and remove it."""
