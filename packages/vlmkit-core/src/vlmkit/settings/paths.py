"""Types of settings that are paths; nothing else.

In a config file a path is relative to the file's folder, in the environment and on the command line
to the working directory, and ``~`` is the home of a user everywhere. A setting says by its type
that it is a path, and ``vlmkit serve --check`` looks whether it can be used as the type says. A
plugin uses these types for its settings in the same way.
"""

from typing import Annotated, Literal

from msgspec import Meta

PATH_USE = "path_use"
"""Where the metadata of a type say how a path is used."""

PathUse = Literal["read", "append", "folder", "plugin", "model"]
"""``read`` and ``append``: a file; ``folder``: one that is created where it is missing."""

InputFile = Annotated[str, Meta(extra={PATH_USE: "read"})]
"""A file that is read; none when empty."""
OutputFile = Annotated[str, Meta(extra={PATH_USE: "append"})]
"""A file that is written, and created where it is missing; none when empty."""
DataPath = Annotated[str, Meta(extra={PATH_USE: "folder"})]
"""A folder for files of vlmkit's own; none when empty."""
PluginPath = Annotated[str, Meta(extra={PATH_USE: "plugin"})]
"""A Python file, or a folder with an ``__init__.py``."""
ModelReference = Annotated[str, Meta(extra={PATH_USE: "model"})]
"""What a user calls a model; a path only where it begins with a dot or ``~``."""
