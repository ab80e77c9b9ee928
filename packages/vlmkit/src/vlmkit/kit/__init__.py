"""What components are built with: checkpoint folders, digests, cache blocks, the heap.

Public. Each module stands alone and none is needed to be a plugin.
"""
