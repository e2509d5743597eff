"""Rerankers for frameworks, each in a module and an extra of its own."""
