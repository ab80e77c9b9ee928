"""The wire codec: requests, answers and errors as frames of bytes, for pipes and sockets."""
