"""Decide where a reranked list ends, by probabilities fitted to an index's judgments or by gaps between them."""
