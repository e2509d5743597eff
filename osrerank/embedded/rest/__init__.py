"""OpenSearch's REST API: the paths and their endpoints."""
