"""From a prompt to a decoder's inputs: positions, masks and embeddings by the rules of a family."""
