"""ModernBERT's forward pass over packed tokens."""
