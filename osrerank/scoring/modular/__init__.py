"""Read the descriptions of models that sentence-transformers saved as a list of modules, without torch."""
