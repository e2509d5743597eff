"""Build the document vectors of whole indices, estimate the cost of a build, and prune old vectors."""
