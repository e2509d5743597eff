"""Trace searches, requests and chunks by OpenTelemetry's API; the SDK, if any, is the application's."""
