"""Bodies of the scoring API: shapes and limits, no behaviour.

The shapes of ``/rerank`` are Jina's, Cohere's and vLLM's, those of ``/score`` are vLLM's.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from vlmkit_server.apis.openai_chat.wire import (
    ClientStruct,
    ImageLimits,
    MaxImageTokens,
    Parts,
)
from vlmkit_server.http.errors import ErrorBody
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.sampling_fields import Label, ModelName

MAX_ITEMS = 1024
"""The largest number of documents, or of queries, of one body."""

ScoreMethod = Literal["embedding", "yes_no"]


class Content(ClientStruct):
    """A query or a document: a text, an image or both, or the parts of a message.

    ``image`` is a URL, a ``data:`` URL or base64.
    """

    text: str | None = None
    image: str | None = None
    content: Parts | None = None


Given: TypeAlias = str | Content
Items: TypeAlias = str | Content | Annotated[list[Given], Meta(min_length=1, max_length=MAX_ITEMS)]


class ScoringFields(msgspec.Struct, kw_only=True):
    """The fields that all bodies share."""

    model: ModelName | None = None
    max_image_tokens: MaxImageTokens = None
    mm_processor_kwargs: ImageLimits = None
    user: Label | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    instruction: str | None = None  # an extension, as is the next field
    score_method: ScoreMethod | None = None


class RerankRequest(ScoringFields, kw_only=True):
    """The body of ``POST /v1/rerank``; with ``top_n`` of 0, all documents are returned."""

    query: Given
    documents: Items
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None


class ScoreRequest(ScoringFields, kw_only=True):
    """The body of ``POST /v1/score``: two fields that belong together, each one item or several."""

    text_1: Items | None = None
    text_2: Items | None = None
    queries: Items | None = None
    documents: Items | None = None
    items: Items | None = None
    data_1: Items | None = None
    data_2: Items | None = None


class RankedDocument(msgspec.Struct):
    """A document of the body; its text is null if it has none. Images are not repeated."""

    text: str | None


class Ranked(msgspec.Struct, kw_only=True):
    """The score of one document."""

    index: int
    relevance_score: float
    document: RankedDocument | msgspec.UnsetType = msgspec.UNSET


class ScoringUsage(msgspec.Struct):
    """The tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int


class Ranking(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/rerank``, the best document first."""

    id: str
    model: str
    results: list[Ranked]
    usage: ScoringUsage
    score_method: ScoreMethod  # an extension


class Score(msgspec.Struct):
    """The score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class Scores(msgspec.Struct, kw_only=True):
    """The answer of ``/v1/score``, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: ScoringUsage
    score_method: ScoreMethod  # an extension
    object: Literal["list"] = "list"


class ScoringErrorBody(ErrorBody, frozen=True):
    """OpenAI's error body, with the text again where Jina's and Cohere's clients read it."""

    detail: str  # Jina's
    message: str  # Cohere's


RERANK = BodyReader(RerankRequest, about=frozenset({"prompt", "vector"}))
SCORE = BodyReader(ScoreRequest, about=frozenset({"prompt", "vector"}))
