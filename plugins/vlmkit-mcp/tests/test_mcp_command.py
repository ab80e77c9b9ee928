"""The contract of commands, for ``vlmkit mcp``."""

from vlmkit_testing import CommandContract


class TestMcp(CommandContract):
    name = "mcp"

    def fails(self) -> tuple[tuple[str, ...], ...]:
        return (("mock", "--fetch", "--fetch-from", "example.org"),)
