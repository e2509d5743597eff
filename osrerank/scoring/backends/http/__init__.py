"""The backend ``http``, which scores through a rerank server."""
