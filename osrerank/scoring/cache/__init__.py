"""Scores kept in the process and in Redis, and computed once for all that wait for them."""
