"""Grammars and incremental parsers of tool calls and of answers in channels. Private."""
