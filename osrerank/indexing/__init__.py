"""Document vectors of whole indices: built beforehand, counted, and pruned."""
