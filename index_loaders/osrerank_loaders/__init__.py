"""Loaders: published collections, streamed into OpenSearch or the embedded engine."""
