"""Test on judged queries whether reranking helps on an index, and which depth and first-pass weight are best."""
