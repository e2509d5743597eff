"""Advice from a sample of queries: whether reranking helps, with which settings, and what it costs."""
