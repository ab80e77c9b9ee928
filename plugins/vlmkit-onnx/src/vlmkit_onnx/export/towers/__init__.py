"""Each family's vision tower and projector as a module that can be traced."""
