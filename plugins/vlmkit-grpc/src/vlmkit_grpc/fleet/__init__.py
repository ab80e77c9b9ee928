"""Several workers of one model behind one runner: which worker answers, and what if it dies."""
