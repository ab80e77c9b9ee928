"""Which of several processes answers a request, and another one when it is lost. Public."""
