"""Document states: what a joined model needs to know of a document, computed once and kept."""
