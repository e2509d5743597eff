"""Document vectors: documents' vectors, computed once and kept."""
