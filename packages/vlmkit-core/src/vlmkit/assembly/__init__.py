"""From a model's name and a config to a running model, and the worker processes of one."""
