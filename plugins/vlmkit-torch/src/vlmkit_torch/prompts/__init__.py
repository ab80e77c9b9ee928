"""From a prompt to a decoder's arguments, by a family's own code."""
