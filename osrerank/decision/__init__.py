"""Decide by your own judgments, clicks or traffic whether reranking helps, and calibrate its probabilities."""
