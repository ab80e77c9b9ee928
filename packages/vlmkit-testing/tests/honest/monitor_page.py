"""A correct monitor without observers: it shows the newest lag of the event loop."""

from vlmkit_server.interfaces.monitor import Monitor, Page, ServerState


class LagPage(Monitor):
    """Shows the longest lag since its page was read."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    def lagged(self, lag_s: float) -> None:
        """Keep the longest lag."""
        self._longest_s = max(self._longest_s, lag_s)

    def page(self, state: ServerState, accept: str) -> Page | None:
        """Return a short page for people, and numbers for others."""
        longest_s, self._longest_s = self._longest_s, 0.0
        names = ", ".join(model.name for model in state.models)
        said = f"{longest_s:.3f} s of lag; models: {names}"
        text = said if "html" in accept else f"lag_seconds {longest_s}"
        return Page(text.encode(errors="replace"), "text/plain; charset=utf-8")
