"""Read the files of models that sentence-transformers, PyLate or Stanford's ColBERT saved, without torch."""
