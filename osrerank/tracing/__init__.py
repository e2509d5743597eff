"""Trace searches, requests and chunks by OpenTelemetry, which is imported only if the application traces."""
