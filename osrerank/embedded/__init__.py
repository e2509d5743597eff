"""An OpenSearch-shaped search engine over tantivy and SQLite, reached as an opensearch-py transport.

``docs/compatibility.md`` has its features, its storage and its limits.
"""
