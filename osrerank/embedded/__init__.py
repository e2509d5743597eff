"""An OpenSearch-shaped search engine over tantivy and SQLite, reached as an opensearch-py transport.

``docs/engine.md`` has its features, its storage and its limits.
"""
