"""The client's side of scoring on workers: dividing into chunks, delivery, messages, and the registry of workers."""
