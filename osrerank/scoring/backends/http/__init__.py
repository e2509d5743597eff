"""Score through a rerank server: what ``backend="http"`` means."""
