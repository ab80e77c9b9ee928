"""``POST /v1/rerank`` and ``POST /v1/score``: scores of queries and documents."""

import time
from collections.abc import Sequence
from secrets import token_hex

import msgspec
from litestar.types import ASGIApp, Scope

from vlmkit.errors import RequestError
from vlmkit.interfaces.runner import Runner
from vlmkit_server.apis.scores.items import Item, ItemReader, score_items
from vlmkit_server.apis.scores.scoring import Scored, Scorer, check_size, prompted_items
from vlmkit_server.apis.scores.settings import ScoresSettings
from vlmkit_server.apis.scores.wire import (
    RERANK,
    SCORE,
    Ranked,
    RankedDocument,
    Ranking,
    RerankRequest,
    Score,
    ScoreMethod,
    ScoreRequest,
    Scores,
    ScoringErrorBody,
    ScoringFields,
    ScoringUsage,
)
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import Fault
from vlmkit_server.interfaces.api import Route
from vlmkit_server.interfaces.conversation import Conversation


class ScoresApi:
    """The scoring API.

    Args:
        settings: how pairs are scored.
    """

    error_type = ScoringErrorBody

    def __init__(self, settings: ScoresSettings | None = None) -> None:
        self._settings = settings or ScoresSettings()

    def write_error(self, fault: Fault, _status: int, _scope: Scope) -> bytes:
        """Encode an error for clients of OpenAI, Jina and Cohere."""
        return msgspec.json.encode(ScoringErrorBody(fault, fault.message, fault.message))

    def routes(self, _host: Host) -> list[Route]:
        """Return the routes of rankings and of scores."""
        ranked = [
            Route(
                path=path,
                scope="embed",
                handler=self.rerank,
                reader=RERANK,
                answer=Ranking,
                answers="prompt",
            )
            for path in ("/v1/rerank", "/rerank", "/v2/rerank")
        ]
        scored = [
            Route(
                path=path,
                scope="embed",
                handler=self.score,
                reader=SCORE,
                answer=Scores,
                answers="prompt",
            )
            for path in ("/v1/score", "/score")
        ]
        return ranked + scored

    async def rerank(self, exchange: Exchange, body: RerankRequest) -> ASGIApp:
        """Rank documents by how well they match a query."""
        runner, reader = await exchange.lease(body.model), ItemReader(body)
        query = reader.item("query", body.query)
        documents = reader.items("documents", body.documents)
        method = self._method(body, runner, exchange.model)
        scored = await self._scored(exchange, body, reader, runner, method, [query], documents)
        returns = body.return_documents is not False
        best = sorted(enumerate(scored.scores), key=lambda found: -found[1])
        results = [
            Ranked(
                index=index,
                relevance_score=score,
                document=_shown(documents[index]) if returns else msgspec.UNSET,
            )
            for index, score in best[: body.top_n or len(best)]
        ]
        ranking = Ranking(
            id=f"rerank-{token_hex(12)}",
            model=exchange.model,
            results=results,
            usage=_usage(scored),
            score_method=method,
        )
        return exchange.pieces(lambda: [msgspec.json.encode(ranking)])

    async def score(self, exchange: Exchange, body: ScoreRequest) -> ASGIApp:
        """Score how well pairs of texts or images match."""
        runner, reader = await exchange.lease(body.model), ItemReader(body)
        queries, documents = score_items(body, reader)
        method = self._method(body, runner, exchange.model)
        scored = await self._scored(exchange, body, reader, runner, method, queries, documents)
        scores = Scores(
            id=f"score-{token_hex(12)}",
            created=int(time.time()),
            model=exchange.model,
            data=[Score(index, score) for index, score in enumerate(scored.scores)],
            usage=_usage(scored),
            score_method=method,
        )
        return exchange.pieces(lambda: [msgspec.json.encode(scores)])

    def _method(self, body: ScoringFields, runner: Runner, model: str) -> ScoreMethod:
        """Return how to score: as the request, the operator or the model says, in this order.

        Raises:
            RequestError: the request has an instruction, which embeddings do not follow.
        """
        names_yes_no = {model, runner.facts.name} & set(self._settings.yes_no_models)
        method = body.score_method
        if method is None:
            has_vectors = bool(runner.facts.limits.hidden_size)
            method = "embedding" if has_vectors and not names_yes_no else "yes_no"
        if method == "embedding" and body.instruction:
            raise RequestError(
                "instruction is not supported where embeddings are compared",
                param="instruction",
                code="unsupported_parameter",
                hint='write it into the query, or send "score_method": "yes_no"',
            )
        return method

    async def _scored(
        self,
        exchange: Exchange,
        body: ScoringFields,
        reader: ItemReader,
        runner: Runner,
        method: ScoreMethod,
        queries: Sequence[Item],
        documents: Sequence[Item],
    ) -> Scored:
        """Score all pairs of a body."""
        settings = self._settings
        detail = Conversation(messages=(), detail_field=reader.detail_field)
        exchange.report_unsupported(detail, runner.facts)
        max_chars = exchange.service.settings.max_text_chars
        check_size(prompted_items(method, queries, documents), max_chars, runner.facts)
        scorer = Scorer(exchange, runner, body.priority or 0)
        if method == "embedding":
            return await scorer.by_embedding(queries, documents)
        instruction = settings.instruction if body.instruction is None else body.instruction
        return await scorer.by_yes_no(queries, documents, settings.system_prompt, instruction)


def _shown(document: Item) -> RankedDocument:
    """Return a document as a ranking repeats it."""
    texts = document.texts
    return RankedDocument("".join(texts) if texts else None)


def _usage(scored: Scored) -> ScoringUsage:
    return ScoringUsage(scored.num_tokens, scored.num_tokens)
