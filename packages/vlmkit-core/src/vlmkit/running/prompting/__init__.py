"""From a request to its prompt: media, decoding, tokens, in threads or renderer processes."""
