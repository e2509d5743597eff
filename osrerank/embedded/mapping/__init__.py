"""The mappings of an index, the values of its fields in documents, and the parts of documents that searches return."""
