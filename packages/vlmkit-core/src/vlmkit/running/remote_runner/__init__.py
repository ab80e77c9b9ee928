"""Runners whose requests another process answers: both ends, and their messages. Public."""
