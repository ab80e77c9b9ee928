"""What plugins implement, one file a protocol, and the values that cross their borders.

Public. No implementation and no heavy import. Axes: ``seq`` tokens of one sequence; ``rows``
sequences that get logits in a step; ``vocab`` token ids; ``hidden`` the width of an embedding.
Ranges are half-open. Arrays cross these borders by DLPack, so that an encoder in one library can
feed an engine in another.
"""
