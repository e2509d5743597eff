"""The backend ``http``, which lets a rerank server score the documents."""
