"""The formats of published collections, one module per format: how to read the files, and how to search them."""
