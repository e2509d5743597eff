"""OpenSearch's query DSL, compiled to tantivy."""
