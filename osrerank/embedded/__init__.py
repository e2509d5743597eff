"""An OpenSearch-shaped engine over tantivy, reached as an opensearch-py transport."""
