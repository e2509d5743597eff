"""Load a collection into an index: read it, send bulk requests, resume after an interruption, check the count."""
