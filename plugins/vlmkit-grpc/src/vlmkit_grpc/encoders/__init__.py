"""Media encoders on other machines: the process that encodes, and the encoder that sends to it."""
