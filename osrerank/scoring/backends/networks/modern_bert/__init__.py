"""ModernBERT's forward pass without padding."""
