"""How models write tool calls and channels, as grammars and incremental parsers. Private."""
