"""The comparison page: both orders of a search, side by side."""
