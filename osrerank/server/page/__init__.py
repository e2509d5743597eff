"""The comparison page, which shows a search's first-pass order and its reranked order side by side."""
