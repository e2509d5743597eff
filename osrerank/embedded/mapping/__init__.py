"""The fields of an index, their values, and the filters of a document's source."""
