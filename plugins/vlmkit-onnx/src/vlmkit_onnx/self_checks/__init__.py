"""What a decoder is tried with when it is loaded, before anything is promised of it."""
