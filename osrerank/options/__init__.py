"""What a search may ask for: `Rerank` and its parts, read once, unknown names refused."""
