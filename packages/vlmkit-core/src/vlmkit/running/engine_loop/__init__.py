"""The engine loop and all that it owns: sequences, steps, the encoder, streams of answers."""
