"""The stages of reranking: each is a function from a ranking to a ranking."""
