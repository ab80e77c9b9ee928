"""What is written down of requests and of the server: no content, no secrets."""
