"""Runs, judgments, measures, significance: numbers that agree with trec_eval to the digit."""
