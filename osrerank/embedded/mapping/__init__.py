"""The fields of an index, their values, and what of a document's source is shown."""
