"""A reranked search: plan its first pass, expand the query, send it, fall back where it fails, and rerank the hits."""
