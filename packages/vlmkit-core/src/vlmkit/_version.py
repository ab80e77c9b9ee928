"""The version of this installation, which all distributions of the workspace share.

When a distribution is built, ``versioningit`` takes its version from the tags of the repository.
"""

from importlib.metadata import version

__version__ = version("vlmkit-core")
