"""Fault attribution, isolation of the requests that fail, and the watchdog for hung work."""
