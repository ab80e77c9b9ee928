"""The protocols that plugins implement, one file each, and the values that they exchange.

Public. Holds no implementation and no heavy import. Axes of arrays: ``seq`` is the tokens of one
sequence; ``rows`` the positions of a step that get logits; ``vocab`` the token ids; ``hidden`` the
width of an embedding. Ranges are half-open. Arrays are exchanged by DLPack, so that an encoder in
one library can feed an engine in another.
"""
