"""Whether reranking helps on one's own data, and what keeps the answer true."""
