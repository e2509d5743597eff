"""Traces of searches, requests and chunks for OpenTelemetry; where nobody traces, nothing of it is imported."""
