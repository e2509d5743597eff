"""An OpenSearch-shaped search engine over tantivy and SQLite, reached as an opensearch-py transport.

``docs/engine.md`` says what it does, how it stores and what it leaves out.
"""
