"""Image processors on Pillow and NumPy, where transformers has one for torchvision alone.

Each family is data: its settings, how a size becomes views (:mod:`.tiling`, :mod:`.patching`) and
how those become arrays (:mod:`.packing`). What all of them share is transformers' own base class
(:mod:`.processor`). Models are no business of theirs.
"""
