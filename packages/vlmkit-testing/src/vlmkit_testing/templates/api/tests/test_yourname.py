"""The API keeps vlmkit's contract, and names the fields of its own body in errors."""

from collections.abc import Sequence

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.interfaces.api import Api
from vlmkit_testing import ApiContract
from vlmkit_testing.contracts.api_contract import MODEL, Received, Sent
from vlmkit_testing.contracts.api_subject import ApiServer, ScriptedRunner
from vlmkit_yourname.api import Questions

PATH = "/yourname"


class TestQuestions(ApiContract):
    def make(self) -> Api:
        return Questions()

    def requests(self) -> Sequence[Sent]:
        return [Sent(PATH, {"model": MODEL, "question": "What is it?"})]

    def chat(self, text: str, *, stream: bool, image_url: str = "") -> Sent | None:
        body = {"model": MODEL, "question": text, "stream": stream}
        return Sent(PATH, body | ({"image": image_url} if image_url else {}))

    def answer_of(self, received: Received) -> str:
        lines = map(msgspec.json.decode, received.body.splitlines())
        return "".join(line.get("text", "") for line in lines)


def test_an_error_names_the_field_of_this_api() -> None:
    runner = ScriptedRunner(RequestError("the prompt is too long", param="messages"))
    (received,) = ApiServer(Questions(), runner).send(Sent(PATH, {"question": "x"}))
    assert msgspec.json.decode(received.body)["field"] == "question"


def test_the_length_of_an_answer_reaches_the_model() -> None:
    runner = ScriptedRunner()
    ApiServer(Questions(), runner).send(Sent(PATH, {"question": "x", "max_tokens": 3}))
    params = runner.requests[0].params
    assert params is not None
    assert params.max_tokens == 3
