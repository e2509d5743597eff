"""The client side of scoring on workers: chunks, delivery, messages, and the worker registry."""
