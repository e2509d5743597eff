"""Evaluate recorded use: users' clicks on interleaved rankings, and searches in shadow mode."""
