"""Rerankers for other frameworks. Each module needs its framework's extra."""
