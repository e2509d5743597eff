"""Trace searches, requests and chunks with OpenTelemetry's API. The application can set up an SDK to export spans."""
