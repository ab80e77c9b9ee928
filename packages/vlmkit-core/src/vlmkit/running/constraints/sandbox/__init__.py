"""The constraint sandbox: trials in processes that can be killed, before the server compiles."""
