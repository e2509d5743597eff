"""Rerankers for other frameworks; each module needs the extra of its framework."""
