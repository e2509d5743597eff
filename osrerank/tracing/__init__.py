"""Trace searches and requests with OpenTelemetry's API. To export the spans, an application sets up an SDK."""
