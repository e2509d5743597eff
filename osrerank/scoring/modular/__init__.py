"""sentence-transformers' modular cross-encoders: what their files say, without torch."""
