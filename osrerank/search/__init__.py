"""The search call: plan, expand, send, fall back, rerank."""
