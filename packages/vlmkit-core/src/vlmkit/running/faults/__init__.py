"""Fault attribution, isolation of faulty requests, and the watchdog."""
