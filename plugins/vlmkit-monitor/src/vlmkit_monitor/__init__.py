"""Metrics for Prometheus, and traces and metrics for OpenTelemetry, of a vlmkit server."""
