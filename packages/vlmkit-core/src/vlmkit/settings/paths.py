"""Types of settings that are paths; plugins use them for their settings, too.

Paths in a config file are relative to the file's folder. Paths in the environment and on the
command line are relative to the working directory. ``~`` is the user's home everywhere.
``vlmkit serve --check`` checks that a path can be used as its type says.
"""

from typing import Annotated, Literal

from msgspec import Meta

PATH_USE = "path_use"
"""The key in a type's metadata that holds the use of a path."""

PathUse = Literal["read", "append", "folder", "plugin", "model"]
"""How a path is used.

``read`` and ``append`` are for files. A ``folder`` is created if it is missing. ``plugin`` is for a
Python file or package, and ``model`` for a model reference.
"""

InputFile = Annotated[str, Meta(extra={PATH_USE: "read"})]
"""A file to read; empty for none."""
OutputFile = Annotated[str, Meta(extra={PATH_USE: "append"})]
"""A file to append to, created if it is missing; empty for none."""
DataPath = Annotated[str, Meta(extra={PATH_USE: "folder"})]
"""A folder for files that vlmkit writes; empty for none."""
PluginPath = Annotated[str, Meta(extra={PATH_USE: "plugin"})]
"""A Python file, or a folder with an ``__init__.py``."""
ModelReference = Annotated[str, Meta(extra={PATH_USE: "model"})]
"""A reference to a model; a path only if it begins with a dot or ``~``."""
