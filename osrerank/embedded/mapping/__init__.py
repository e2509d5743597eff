"""The mappings of an index: its fields, their values in documents, and the parts of documents that searches return."""
