"""Shows models of vlmkit the pages of PDF files."""
