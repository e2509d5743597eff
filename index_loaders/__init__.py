"""Loaders: published collections, streamed into OpenSearch."""
