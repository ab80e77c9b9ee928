"""How pictures are made smaller: by the limits that a family's own image processor has.

One file for each kind of limit. They are told apart by the settings that a processor has, and tried
once when the model is loaded; a family whose limits are not known shows pictures in one way.
"""
