"""OpenSearch's own rerank search pipeline: install it on a cluster and remove it."""
