"""Rerankers for other frameworks, each with a module and an extra of its own."""
