"""Evaluate how users use a search: their clicks on interleaved rankings, and their searches in shadow mode."""
