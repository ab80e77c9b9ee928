"""Model folders and packages, generation defaults and pooling. Private; reads no weights."""
