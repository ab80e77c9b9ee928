"""``python -m vlmkit`` is the ``vlmkit`` command."""

from vlmkit.cli import main

main()
