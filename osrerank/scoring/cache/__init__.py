"""Cache the scores of queries and documents, in this process and in Redis."""
