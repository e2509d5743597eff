"""Compute BERT, RoBERTa and ModernBERT in torch by our own forward pass, which needs no padding."""
