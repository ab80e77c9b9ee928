"""What Python programs and commands pass in: conversations, images, paths and URLs."""
