"""Trace searches, requests and chunks with OpenTelemetry's API; the application sets up the SDK, if it wants one."""
