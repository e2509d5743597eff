"""ModernBERT: what its config says, and its forward pass over packed tokens."""
