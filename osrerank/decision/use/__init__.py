"""What users were shown and clicked, and which of two interleaved rankings they prefer."""
