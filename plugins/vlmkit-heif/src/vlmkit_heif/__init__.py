"""Shows models of vlmkit HEIC images."""
