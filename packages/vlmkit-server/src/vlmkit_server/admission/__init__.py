"""Admission control: what each request may use of the server, and what it holds until it ends."""
