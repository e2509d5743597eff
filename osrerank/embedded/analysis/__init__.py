"""Analyzers that turn text into index terms as Lucene's analyzers do."""
