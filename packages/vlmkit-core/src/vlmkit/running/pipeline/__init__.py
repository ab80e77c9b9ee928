"""The pipeline of one model: components tied together, requests prepared for the loop."""
