"""The routes of tokens: count and decode them, generate from them, and SageMaker's one route."""

from vlmkit_server.apis.openai_chat.answer import ChatCompletion
from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.apis.tokens.generate import generate
from vlmkit_server.apis.tokens.generated import Generated
from vlmkit_server.apis.tokens.invocations import invoke
from vlmkit_server.apis.tokens.tokenize import detokenize, tokenize
from vlmkit_server.apis.tokens.wire_generate import GENERATE
from vlmkit_server.apis.tokens.wire_tokenize import DETOKENIZE, TOKENIZE, Detokenized, Tokens
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import OpenAiErrors
from vlmkit_server.interfaces.api import Route


class TokensApi(OpenAiErrors):
    """The API of tokens; ``server.generate`` enables the route that accepts any token."""

    def routes(self, host: Host) -> list[Route]:
        """Return the routes of tokens."""
        routes = [
            Route(
                path="/invocations",
                scope="chat",
                handler=invoke,
                reader=CHAT,
                answer=ChatCompletion,
                event="chat.completion.chunk",
                has_timing=True,
                decodes=False,
            ),
            Route(
                path="/tokenize",
                scope="chat",
                handler=tokenize,
                reader=TOKENIZE,
                answer=Tokens,
                answers="prompt",
            ),
            Route(
                path="/detokenize",
                scope="chat",
                handler=detokenize,
                reader=DETOKENIZE,
                answer=Detokenized,
                answers="prompt",
            ),
        ]
        if host.service.settings.takes_generate:
            routes.append(
                Route(
                    path="/inference/v1/generate",
                    scope="tokens",
                    handler=generate,
                    reader=GENERATE,
                    answer=Generated,
                    event="piece of an answer",
                    has_timing=True,
                )
            )
        return routes
