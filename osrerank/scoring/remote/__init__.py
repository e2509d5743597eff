"""The client's side of the workers: chunks, delivery, messages, and which workers there are."""
