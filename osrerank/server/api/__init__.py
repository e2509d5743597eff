"""The HTTP rerank API, whose requests and responses have the formats of several other rerank APIs."""
