"""Numbers for Prometheus, traces and numbers for OpenTelemetry, of a server of vlmkit."""
