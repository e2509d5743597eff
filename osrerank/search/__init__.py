"""Perform a reranked search: plan its requests, handle their failures, rerank the hits, and write the response."""
