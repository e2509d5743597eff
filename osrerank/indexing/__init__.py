"""Build the document vectors of whole indices beforehand, estimate what that costs, and prune old ones."""
