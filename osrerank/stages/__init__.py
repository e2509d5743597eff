"""What can be done to a ranking: each stage is a function from a ranking to a ranking."""
