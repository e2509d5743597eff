"""Cut off reranked lists at a probability or precision, by calibrations that are fitted to an index's judgments."""
