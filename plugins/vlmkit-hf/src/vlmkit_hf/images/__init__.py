"""Images to arrays and tokens, by the rules of each model family.

``side`` prepares the images of one model. ``processors`` builds the family's processor of
transformers. ``pillow`` has the image processors that transformers offers for torchvision alone.
``standalone`` works without transformers. ``sizing`` limits how many tokens an image takes.
"""
