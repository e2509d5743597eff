"""Rerankers for other frameworks. Each module needs an extra, as in ``pip install osrerank[langchain]``."""
