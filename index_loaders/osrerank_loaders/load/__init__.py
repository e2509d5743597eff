"""Loading a collection into an index: reading, bulk requests, resuming, counting."""
