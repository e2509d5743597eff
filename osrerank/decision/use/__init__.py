"""What users do with results: clicks, judgments from them, and which of two rankings they prefer."""
