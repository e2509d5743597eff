"""Document vectors: computed once for each document, and stored for every later search."""
