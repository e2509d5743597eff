"""Document states: documents' vectors, computed once and kept."""
