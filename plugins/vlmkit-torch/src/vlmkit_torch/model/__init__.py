"""Parts of a transformers model that the engine runs one by one."""
