"""Where a reranked list ends: probabilities fitted to an index's judgments, and the cuts made by them."""
