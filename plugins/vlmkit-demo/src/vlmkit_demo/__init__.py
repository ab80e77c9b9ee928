"""A small trained vision-language model, packaged as a vlmkit plugin."""
