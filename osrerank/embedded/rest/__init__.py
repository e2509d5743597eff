"""OpenSearch's REST API: its paths and their endpoints."""
