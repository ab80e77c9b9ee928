"""Each family's vision tower as a module that can be traced, with its projector."""
