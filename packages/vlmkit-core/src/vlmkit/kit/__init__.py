"""What plugins are built with: checkpoint folders, digests, cache blocks, the heap, a fetcher.

Public. Each module stands alone and none is needed to be a plugin.
"""
