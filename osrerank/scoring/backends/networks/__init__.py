"""Compute BERT, RoBERTa and ModernBERT in torch by osrerank's forward pass, which needs no padding."""
