"""The APIs of this distribution, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from vlmkit_server.apis.anthropic_messages.route import MessagesApi
from vlmkit_server.apis.batches.route import BatchesApi
from vlmkit_server.apis.files.route import FilesApi
from vlmkit_server.apis.openai_chat.route import ChatApi
from vlmkit_server.apis.openai_completions.route import CompletionsApi
from vlmkit_server.apis.openai_embeddings.route import EmbeddingsApi
from vlmkit_server.apis.openai_responses.route import ResponsesApi
from vlmkit_server.apis.scores.route import ScoresApi
from vlmkit_server.apis.tokens.route import TokensApi
from vlmkit_server.interfaces.api import Api

APIS: Mapping[str, Api] = MappingProxyType(
    {
        "openai-chat": ChatApi(),
        "openai-completions": CompletionsApi(),
        "openai-embeddings": EmbeddingsApi(),
        "anthropic-messages": MessagesApi(),
        "openai-responses": ResponsesApi(),
        "scores": ScoresApi(),
        "tokens": TokensApi(),
        "files": FilesApi(),
        "batches": BatchesApi(),
    }
)
