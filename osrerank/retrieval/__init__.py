"""What the first pass sends to OpenSearch."""
