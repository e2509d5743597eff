"""Trace searches and requests with OpenTelemetry's API. The application sets up OpenTelemetry's SDK to export spans."""
