"""Decide by judgments, clicks or traffic whether reranking helps on an index, and calibrate its probabilities."""
