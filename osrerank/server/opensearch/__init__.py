"""The rerank search pipeline of OpenSearch itself, installed on a cluster and taken off it."""
