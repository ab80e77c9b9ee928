"""From a prompt to a decoder's inputs: rules of a family, positions, masks, embeddings."""
