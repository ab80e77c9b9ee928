"""Building blocks for plugins: checkpoint folders, digests, cache blocks, parsers, a fetcher.

Public. Modules can be used separately, and plugins can do without them.
"""
