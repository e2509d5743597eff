"""Trace searches, requests and chunks with OpenTelemetry's API; the application may set up an SDK to export spans."""
