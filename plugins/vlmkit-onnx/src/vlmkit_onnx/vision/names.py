"""Names of the outputs of vision graphs, and of the rows made of them."""

FEATURES = "image_features"
DEEPSTACK = "deepstack."  # rows of the n-th level, for layers inside the decoder
NEWLINE = "image_newline"  # ends a line of rows
