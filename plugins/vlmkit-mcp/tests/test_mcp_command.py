"""``vlmkit mcp`` keeps the contract of commands."""

from vlmkit_testing import CommandContract


class TestMcp(CommandContract):
    name = "mcp"

    def fails(self) -> tuple[tuple[str, ...], ...]:
        return (("mock", "--fetch", "--fetch-from", "example.org"),)
