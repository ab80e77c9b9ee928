"""The runner that answers requests in a child process: both ends, and their messages."""
