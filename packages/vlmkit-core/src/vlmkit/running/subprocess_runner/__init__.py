"""The runner that answers requests in a child process."""
