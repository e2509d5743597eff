"""Elasticsearch's own reranking retriever: install the inference endpoint that it calls, and remove it."""
