"""Fields that many request bodies share: decoding, checks and defaults."""
