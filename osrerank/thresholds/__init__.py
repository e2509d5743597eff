"""Remove reranked hits below a probability of relevance, which a calibration of the index estimates from judgments."""
