"""Image processors on Pillow and NumPy, for families that transformers has with torchvision alone.

Each family is data: its settings, its plan for a size (:mod:`.tiling`, :mod:`.patching`), and the
packing of views into arrays (:mod:`.packing`). transformers' own base class does the rest
(:mod:`.processor`). Does not run models.
"""
