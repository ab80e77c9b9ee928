"""Ollama's API: its routes and its errors."""

from litestar.types import Scope

from vlmkit_ollama import answers, models, vectors, wire
from vlmkit_ollama.answer import ChatLine, GenerateLine
from vlmkit_ollama.lines import MEDIA_TYPE, OllamaError, encoded_error
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import Fault
from vlmkit_server.interfaces.api import Route


class OllamaApi:
    """Ollama's API."""

    error_type = OllamaError

    def write_error(self, fault: Fault, _status: int, _scope: Scope) -> bytes:
        """Encode an error in Ollama's shape."""
        return encoded_error(fault)

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes of answers, of vectors and of models."""
        return [
            Route(
                path="/api/chat",
                scope="chat",
                handler=answers.chat,
                reader=wire.CHAT,
                answer=ChatLine,
                event="line",
                stream_type=MEDIA_TYPE,
                has_timing=True,
                needs_json_type=False,
            ),
            Route(
                path="/api/generate",
                scope="chat",
                handler=answers.generate,
                reader=wire.GENERATE,
                answer=GenerateLine,
                event="line",
                stream_type=MEDIA_TYPE,
                has_timing=True,
                needs_json_type=False,
            ),
            Route(
                path="/api/embed",
                scope="embed",
                handler=vectors.embed,
                reader=wire.EMBED,
                answer=vectors.EmbedAnswer,
                answers="embed",
                needs_json_type=False,
            ),
            Route(
                path="/api/embeddings",
                scope="embed",
                handler=vectors.embed_one,
                reader=wire.EMBEDDINGS,
                answer=vectors.EmbeddingAnswer,
                answers="embed",
                needs_json_type=False,
            ),
            Route(
                path="/api/show",
                scope="key",
                handler=models.show,
                reader=wire.SHOW,
                answer=models.ShownModel,
                answers="",
                needs_json_type=False,
            ),
            *(
                Route(path=path, scope="key", handler=handler, answer=answer, method="GET")
                for path, handler, answer in (
                    ("/api/tags", models.list_models, models.TagList),
                    ("/api/ps", models.list_loaded, models.LoadedModels),
                    ("/api/version", models.version, models.OllamaVersion),
                )
            ),
        ]
