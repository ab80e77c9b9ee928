"""Who asks: the API keys of an operator's file, and what each may do."""
