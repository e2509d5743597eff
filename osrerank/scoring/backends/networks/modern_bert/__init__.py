"""Compute ModernBERT without padding."""
