"""APIs that break one promise each, derived from a toy API."""

import asyncio
import logging
from collections.abc import Iterable, Sequence as Seq
from dataclasses import replace
from typing import Any

import msgspec
from honest.api import (
    ASK,
    LIST,
    Question,
    ToyAnswer,
    ToyApi,
    ToyCall,
    ToyError,
    ToyLines,
    ToyModels,
)
from litestar.response.base import ASGIResponse

from broken.broken import Broken, Table
from vlmkit.errors import PluginError, RequestError, VlmkitError
from vlmkit.types.completion import Choice, Chunk
from vlmkit.types.delta import Delta, ToolCallDelta
from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.interfaces.api import Route
from vlmkit_server.interfaces.conversation import Conversation, ImageSource
from vlmkit_testing import ApiContract
from vlmkit_testing.contracts.api_contract import MODEL, Received, Sent


class ChangedRoute(ToyApi):
    changes: dict[str, Any] = {}  # noqa: RUF012 - read only

    def routes(self, host: Any) -> Seq[Any]:
        ask, names = super().routes(host)
        return [replace(ask, **self.changes), names]


class AnnouncesAnotherMediaType(ChangedRoute):
    changes = {"stream_type": "application/x-ndjson"}  # noqa: RUF012 - read only


class HasNoScope(ChangedRoute):
    changes = {"scope": ""}  # noqa: RUF012 - as above


async def undescribed(exchange: Exchange, body: Question) -> Any:
    return await ToyApi().ask(exchange, body)


class DescribesNothing(ChangedRoute):
    changes = {"handler": undescribed}  # noqa: RUF012 - as above


class HasAnUnansweredRoute(ToyApi):
    def routes(self, host: Any) -> Seq[Any]:
        broken = Route(path=LIST, scope="key", handler=self.broken, method="GET", answer=ToyAnswer)
        return [super().routes(host)[0], broken]

    async def broken(self, exchange: Exchange, _: None) -> Any:
        """Fail."""
        raise KeyError(exchange.model)


class KeepsItsServer(ToyApi):
    host: Any = None

    def routes(self, host: Any) -> Seq[Any]:
        if self.host is not None:
            raise PluginError("it is mounted already")
        self.host = host
        return super().routes(host)


class TrimsAnswers(ToyApi):
    def encoded(self, choice: Choice) -> bytes:
        return msgspec.json.encode(ToyAnswer(choice.text[:10]))


class FirstLineOnly(ToyLines):
    is_first = True

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        sent = super().chunks(chunks) if self.is_first else b""
        self.is_first = False
        return sent


class SendsTheFirstLineOnly(ToyApi):
    lines = FirstLineOnly


class HeldLines(ToyLines):
    def __init__(self) -> None:
        super().__init__()
        self.held = b""

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        self.held += super().chunks(chunks)
        return b""

    def closing(self, usage: Any) -> bytes:
        return self.held + super().closing(usage)


class BuffersItsStreams(ToyApi):
    lines = HeldLines


class SharesItsText(ToyApi):
    text = ""

    def conversation(self, body: Question) -> Conversation:
        self.text = body.text
        return super().conversation(body)

    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        self.text = body.text
        await asyncio.sleep(0.01)
        return await super().ask(exchange, Question(**msgspec.structs.asdict(body) | {
            "text": self.text
        }))  # fmt: skip


class DropsImages(ToyApi):
    def conversation(self, body: Question) -> Conversation:
        return super().conversation(msgspec.structs.replace(body, images=[]))


class WritesOpenAisErrors(ToyApi):
    def write_error(self, fault: Any, _status: int, _scope: Any) -> bytes:
        return msgspec.json.encode({"error": {"message": fault.message}})


class NeedsAField(ToyApi):
    def write_error(self, fault: Any, _status: int, _scope: Any) -> bytes:
        return msgspec.json.encode(
            ToyError(f"{fault.param}: {fault.message}"[: 4 + len(fault.param)])
        )


class LenientReader:
    """Ignores fields that it does not know."""

    takes_added = False
    shape = Question

    def read(self, body: bytes, _added: Any = ()) -> Any:
        try:
            return msgspec.json.decode(body, type=Question), frozenset()
        except msgspec.ValidationError:
            raise RequestError("the body is wrong") from None


class IgnoresUnknownFields(ToyApi):
    reader = LenientReader()  # type: ignore[assignment]


class AnswersErrorsWithSuccess(ToyApi):
    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        try:
            return await super().ask(exchange, body)
        except VlmkitError as error:
            return ASGIResponse(body=msgspec.json.encode(ToyError(str(error))))


class SilentLines(ToyLines):
    def failed(self, error: Exception, scope: Any) -> bytes:
        return b"end\n"


class EndsFailedStreamsAsComplete(ToyApi):
    lines = SilentLines


class LinesWithSharedCalls(ToyLines):
    shared: list[Delta] = []  # noqa: RUF012 - the mistake

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.shared


class NumberedLines(ToyLines):
    num_sent = 0

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        lines = super().chunks(chunks)
        type(self).num_sent += 1
        return lines + f"line {self.num_sent}\n".encode() if lines else lines


class NumbersTheLinesOfAllStreams(ToyApi):
    lines = NumberedLines


class KeepsTheCallsOfAllAnswers(ToyApi):
    lines = LinesWithSharedCalls


class OneOpenBlock(ToyLines):
    def chunk(self, chunk: Chunk) -> bytes:
        is_call = any(isinstance(delta, ToolCallDelta) for delta in chunk.deltas)
        if is_call or not self.calls:
            return super().chunk(chunk)
        self.calls.append(ToolCallDelta(0, "", "", chunk.text))
        return b""


class AddsTextToACall(ToyApi):
    """Has one open block at a time, and does not close that of a call where text follows."""

    lines = OneOpenBlock


class EndsAtACall(ToyLines):
    def chunk(self, chunk: Chunk) -> bytes:
        has_called = bool(self.calls)
        line = super().chunk(chunk)
        return b"" if has_called else line


class DropsTextAfterACall(ToyApi):
    lines = EndsAtACall


class CallsOfCompleteAnswers(ToyLines):
    def chunk(self, chunk: Chunk) -> bytes:
        line = super().chunk(chunk)
        if chunk.finish_reason == "length":
            self.calls.clear()
        return line


class DropsCallsOfCutStreams(ToyApi):
    lines = CallsOfCompleteAnswers


class DropsCallsOfWholeAnswers(ToyApi):
    def encoded(self, choice: Choice) -> bytes:
        return msgspec.json.encode(ToyAnswer(choice.text))


class RepeatsTheQuestion(ToyApi):
    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        try:
            return await super().ask(exchange, body)
        except VlmkitError:
            raise RequestError(f"cannot answer {body.text}") from None


class LogsTheQuestion(ToyApi):
    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        logging.getLogger("toy").info("question: %s", body.text)
        return await super().ask(exchange, body)


class RepeatsTheUrlOfAnImage(ToyApi):
    def conversation(self, body: Question) -> Conversation:
        if unreadable := [url for url in body.images if not url.startswith("data:")]:
            raise RequestError(f"cannot read {min(unreadable)!r}", param="images")
        return super().conversation(body)


class GoesOnWithoutItsClient(ToyApi):
    async def ask(self, exchange: Exchange, body: Question) -> Any:
        """Answer a question."""
        answer = await exchange.run(self.conversation(body), "toy")
        answer.source.abort = lambda: None  # type: ignore[method-assign]
        return exchange.stream(replace(answer, reader=answer.source), self.lines())


class DropsWhiteSpace(ToyApi):
    class Lines(ToyLines):
        def chunks(self, chunks: Iterable[Chunk]) -> bytes:
            return super().chunks(chunk for chunk in chunks if chunk.text.strip())

    lines = Lines


class StatesAnotherAnswer(ChangedRoute):
    changes = {"answer": ToyModels}  # noqa: RUF012 - read only


class NeedsACode(ToyApi):
    def write_error(self, fault: Any, _status: int, _scope: Any) -> bytes:
        return msgspec.json.encode(ToyError(f"{fault.message}{fault.code[:0]}"))


class NamesFieldsOfTheRunner(ToyApi):
    def write_error(self, fault: Any, _status: int, _scope: Any) -> bytes:
        return msgspec.json.encode(ToyError(f"messages: {fault.message}"))


class AsciiLines(ToyLines):
    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        return super().chunks(chunks).decode().encode("ascii", "ignore")


class StreamsAscii(ToyApi):
    lines = AsciiLines


class FirstChunks(ToyLines):
    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        return super().chunks(list(chunks)[:1])


class SendsTheFirstOfTheChunks(ToyApi):
    lines = FirstChunks


class FirstDeltas(ToyLines):
    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        first = (replace_deltas(chunk) for chunk in chunks)
        return super().chunks(first)


def replace_deltas(chunk: Chunk) -> Chunk:
    return msgspec.structs.replace(chunk, deltas=chunk.deltas[:1])


class SendsTheFirstOfTheDeltas(ToyApi):
    lines = FirstDeltas


class LinesThatNeedText(ToyLines):
    has_text = False

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        lots = list(chunks)
        self.has_text = self.has_text or any(chunk.text for chunk in lots)
        return super().chunks(lots)

    def closing(self, usage: Any) -> bytes:
        if not self.has_text:
            raise KeyError("text")
        return super().closing(usage)


class NeedsText(ToyApi):
    lines = LinesThatNeedText


class AllLines(ToyLines):
    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        deltas = (delta for chunk in chunks for delta in chunk.deltas)
        texts = (delta.text for delta in deltas if not isinstance(delta, ToolCallDelta))
        return b"".join(msgspec.json.encode(text) + b"\n" for text in texts)


class StreamsReasoningAsText(ToyApi):
    lines = AllLines


class TrimsQuestions(ToyApi):
    def conversation(self, body: Question) -> Conversation:
        return super().conversation(msgspec.structs.replace(body, text=body.text.strip()))


class LinesWithNamesOfTools(ToyLines):
    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        deltas = [delta for chunk in chunks for delta in chunk.deltas]
        texts = (d.name if isinstance(d, ToolCallDelta) else d.text for d in deltas)
        return msgspec.json.encode("".join(texts)) + b"\n"


class StreamsCallsAsText(ToyApi):
    lines = LinesWithNamesOfTools


class NamesTheImages(ToyApi):
    def image(self, number: int, source: str) -> ImageSource:
        return ImageSource("images", source)


class NamesTheFirstImage(ToyApi):
    def image(self, number: int, source: str) -> ImageSource:
        return ImageSource("images[0]", source)


class CountsImagesFromOne(ToyApi):
    def image(self, number: int, source: str) -> ImageSource:
        return ImageSource(f"images[{number + 1}]", source)


class NamesImagesAsAnotherApi(ToyApi):
    def image(self, number: int, source: str) -> ImageSource:
        return ImageSource(f"messages[0].content[{number + 1}].image_url.url", source)


class OnApi(ApiContract):
    def __init__(self, kind: type[ToyApi]) -> None:
        self._kind = kind

    def make(self) -> ToyApi:
        return self._kind()

    def requests(self) -> Seq[Sent]:
        return [Sent(ASK, {"model": MODEL, "text": "hello"}), Sent(LIST, method="GET")]

    def chat(self, text: str, *, stream: bool, image_url: str = "") -> Sent | None:
        body = {"model": MODEL, "text": text, "stream": stream}
        return Sent(ASK, body | ({"images": [image_url]} if image_url else {}))

    def calls_of(self, received: Received) -> Seq[tuple[str, Any]]:
        if received.headers["content-type"].startswith("text/plain"):
            lines = [line for line in received.body.splitlines() if line.startswith(b"{")]
            calls = [msgspec.json.decode(line, type=ToyCall) for line in lines]
        else:
            calls = msgspec.json.decode(received.body, type=ToyAnswer).calls
        return [(call.name, call.arguments) for call in calls]

    def answer_of(self, received: Received) -> str:
        if received.headers["content-type"].startswith("text/plain"):
            lines = received.body.splitlines()
            return "".join(msgspec.json.decode(line) for line in lines if line.startswith(b'"'))
        return msgspec.json.decode(received.body, type=ToyAnswer).text


TABLE = Table(
    ApiContract,
    OnApi,
    ToyApi,
    (
        Broken(
            HasNoScope,
            "A route states who may call it.",
            "every_route_is_described_and_has_a_scope",
            raises=(PluginError,),
        ),
        Broken(
            DescribesNothing,
            "A handler's docstring describes its route.",
            "every_route_is_described_and_has_a_scope",
        ),
        Broken(HasAnUnansweredRoute, "Each route answers.", "each_route_answers_its_request"),
        Broken(
            KeepsItsServer,
            "State belongs to the routes of one server.",
            "one_api_can_have_two_servers",
            raises=(PluginError,),
        ),
        Broken(
            TrimsAnswers,
            "A whole answer has the model's whole text.",
            "a_whole_answer_has_the_models_text",
        ),
        Broken(
            SendsTheFirstLineOnly,
            "A stream has the model's whole text.",
            "a_stream_has_the_models_text_piece_by_piece",
        ),
        Broken(
            DropsWhiteSpace,
            "A piece of white space is text.",
            "a_stream_has_the_models_text_piece_by_piece",
        ),
        Broken(
            BuffersItsStreams,
            "A stream sends text as it is generated.",
            "a_stream_has_the_models_text_piece_by_piece",
        ),
        Broken(
            SharesItsText,
            "Requests share no state.",
            "concurrent_requests_get_their_own_answers",
        ),
        Broken(
            KeepsTheCallsOfAllAnswers,
            "An answer has its own calls.",
            "an_answer_shows_no_call_of_an_earlier_one",
        ),
        *(
            Broken(kind, promise, "a_stream_has_the_text_and_the_calls_of_the_whole_answer", raises)
            for kind, promise, raises in (
                (AddsTextToACall, "Text after a call is no part of it.", (RequestError,)),
                (DropsTextAfterACall, "Text may follow a call.", ()),
                (DropsCallsOfCutStreams, "A stream that a limit ends has its calls.", ()),
                (DropsCallsOfWholeAnswers, "A whole answer has its calls.", ()),
            )
        ),
        Broken(DropsImages, "An image reaches the model.", "an_image_reaches_the_model"),
        Broken(
            WritesOpenAisErrors,
            "An error has the type that the API declares.",
            "an_error_has_the_apis_own_shape",
            raises=(msgspec.ValidationError,),
        ),
        Broken(
            AnnouncesAnotherMediaType,
            "A stream has the media type that its route states.",
            "a_stream_has_the_media_type_of_its_route",
        ),
        Broken(
            NeedsAField,
            "An error may be about no field.",
            "it_encodes_any_error_of_the_server",
            raises=(TypeError,),
        ),
        Broken(
            IgnoresUnknownFields,
            "An unknown field is reported or refused.",
            "an_unknown_field_is_reported_or_refused",
        ),
        Broken(
            AnswersErrorsWithSuccess,
            "An error has its HTTP status.",
            "an_error_of_the_runner_is_a_response",
        ),
        Broken(
            EndsFailedStreamsAsComplete,
            "A failed stream ends with its error.",
            "an_error_within_a_stream_ends_it",
        ),
        Broken(
            RepeatsTheQuestion,
            "An error does not repeat a client's text.",
            "no_error_and_no_log_line_repeats_a_clients_text",
        ),
        Broken(
            LogsTheQuestion,
            "A log line does not repeat a client's text.",
            "no_error_and_no_log_line_repeats_a_clients_text",
        ),
        Broken(
            RepeatsTheUrlOfAnImage,
            "An error does not repeat a text of any field.",
            "no_error_and_no_log_line_repeats_a_text_of_any_field",
        ),
        Broken(
            GoesOnWithoutItsClient,
            "A disconnect aborts the answer.",
            "a_client_that_disconnects_aborts_its_answer",
            raises=(TimeoutError, AttributeError),
        ),
        Broken(
            StatesAnotherAnswer,
            "A response has the type that its route states.",
            "each_response_has_the_type_of_its_route",
            raises=(msgspec.ValidationError,),
        ),
        Broken(
            NeedsACode,
            "An error may have no code.",
            "it_encodes_any_error_of_the_server",
            raises=(TypeError,),
        ),
        Broken(
            NamesFieldsOfTheRunner,
            "An error names the field as the client does.",
            "an_error_of_the_runner_is_a_response",
        ),
        Broken(
            StreamsAscii,
            "A text may have any characters.",
            "any_text_stays_as_it_is",
            raises=(msgspec.DecodeError,),
        ),
        Broken(
            SendsTheFirstOfTheChunks,
            "Several chunks may come at once.",
            "a_text_may_come_in_any_pieces",
        ),
        Broken(
            SendsTheFirstOfTheDeltas,
            "A chunk may have several deltas.",
            "a_text_may_come_in_any_pieces",
        ),
        Broken(NeedsText, "An answer may have no text.", "an_answer_may_have_no_text"),
        Broken(
            StreamsReasoningAsText,
            "Reasoning is no part of the text.",
            "reasoning_is_no_part_of_the_text",
        ),
        Broken(
            TrimsQuestions,
            "White space around a question is part of it.",
            "any_text_stays_as_it_is",
        ),
        Broken(
            StreamsCallsAsText,
            "A call is no part of the text.",
            "an_answer_shows_no_call_of_an_earlier_one",
        ),
        Broken(
            NumbersTheLinesOfAllStreams,
            "An encoder is used by one request alone.",
            "equal_requests_have_equal_responses",
        ),
        *(
            Broken(kind, promise, "an_error_about_an_image_names_its_path_in_the_body")
            for kind, promise in (
                (NamesTheImages, "An error about an image names this image alone."),
                (NamesTheFirstImage, "An error about an image names it among others."),
                (CountsImagesFromOne, "The paths of fields count from 0."),
                (NamesImagesAsAnotherApi, "An error names fields of the client's body."),
            )
        ),
    ),
)
