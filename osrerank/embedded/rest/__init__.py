"""OpenSearch's REST API: which paths there are, and what answers them."""
