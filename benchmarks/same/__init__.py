"""What is asked of servers whose answers are compared, and how their answers are recorded."""
