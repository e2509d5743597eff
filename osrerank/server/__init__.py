"""The HTTP rerank API, and OpenSearch's own rerank pipeline that calls it."""
