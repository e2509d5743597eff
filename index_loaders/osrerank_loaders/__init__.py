"""Loaders that stream published collections into OpenSearch or the embedded engine."""
