"""Perform a reranked search: plan the requests, handle failed requests, rerank the hits, and write the response."""
