"""What a model's files say: references, folders, packages and generation defaults."""
