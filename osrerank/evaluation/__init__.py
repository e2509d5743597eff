"""Runs, judgments, measures, significance."""
