"""A search engine over tantivy and SQLite that imitates OpenSearch, reached as an opensearch-py transport.

``docs/compatibility.md`` describes its features, its storage and its limits.
"""
