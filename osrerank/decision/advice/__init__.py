"""Test on judged queries whether reranking helps on an index, and which options rank best."""
