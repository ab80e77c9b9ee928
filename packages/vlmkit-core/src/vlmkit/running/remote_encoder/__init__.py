"""Media encoders in other processes: their messages, and the end that encodes. Public."""
