"""Cache scores in this process and in Redis."""
