"""The compiler from OpenSearch's query DSL to tantivy's queries."""
