"""Make a joined reranker of a public bi-encoder: read its files, choose how query and document are joined, write it."""
