"""Chat templates: what they may do, what they are kept from, how they fail."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit_hf.template
from vlmkit.ask.message import Message, TextPart
from vlmkit.errors import CheckpointError, ConfigError, RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.template import ChatTemplate
from vlmkit_hf.tokenizer import HfTokenizer

CheckpointOf = Callable[[str], Checkpoint]
ASK = [Message.of("user", "Hello there")]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, "m").render([{"role": "user"}])


def copied(checkpoint: Checkpoint, folder: Path) -> Path:
    for path in checkpoint.path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def load(folder: Path, **settings: str) -> HfTokenizer:
    return HfTokenizer(Checkpoint("m", folder), HfTokenizerSettings(**settings))


def text_of(tokenizer: HfTokenizer, messages: list[Message] = ASK) -> str:
    return tokenizer.decode(tokenizer.prompt(messages).token_ids)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__html__ = raise_exception %}{{ ns }}",
        "{{ namespace(__html__=1) }}",
        "{{ range(10**9) | list }}",
        "{{ lipsum(5) }}",
        "{{ dict.__subclasses__() }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(attack: str) -> None:
    with pytest.raises(RequestError, match="cannot write this conversation"):
        render(attack)


def test_a_template_that_is_not_jinja_is_a_broken_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="the chat template of 'm' is not valid Jinja"):
        ChatTemplate("{% for %}", {}, "m")


def test_a_refusal_is_passed_on_in_the_templates_own_words() -> None:
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('System role not supported') }}")

    assert str(caught.value) == (
        "the model's chat template refuses this conversation: 'System role not supported'"
    )
    assert caught.value.param == "messages"


def test_a_refusal_does_not_repeat_what_the_client_wrote(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    path = tmp_path / "refuse.jinja"
    path.write_text(
        "{% for message in messages %}{% if message.role == 'system' %}"
        "{{ raise_exception('no ' + message.content) }}{% endif %}{{ message.content }}{% endfor %}"
    )
    tokenizer = load(checkpoint_of("llama").path, chat_template=str(path))

    with pytest.raises(RequestError) as caught:
        tokenizer.prompt([Message.of("system", "my secret"), *ASK])
    assert "secret" not in str(caught.value)
    assert "'no ...'" in str(caught.value)


def test_the_operators_template_comes_first(checkpoint_of: CheckpointOf, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for message in messages %}Q: {{ message.content }} A:{% endfor %}")
    tokenizer = load(checkpoint_of("qwen2").path, chat_template=str(path))

    assert text_of(tokenizer) == "Q: Hello there A:"


def test_an_operators_template_that_is_not_there_is_a_config_error(
    checkpoint_of: CheckpointOf,
) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.chat_template '/no/where' cannot be read"):
        load(checkpoint_of("qwen2").path, chat_template="/no/where")


@pytest.mark.parametrize("place", ["chat_template.json", "tokenizer_config.json"])
def test_a_template_is_found_in_the_older_places_too(
    checkpoint_of: CheckpointOf, tmp_path: Path, place: str
) -> None:
    folder = copied(checkpoint_of("qwen2"), tmp_path)
    (folder / "chat_template.jinja").unlink()
    path = folder / place
    content = json.loads(path.read_text()) if path.exists() else {}
    template = "{% for message in messages %}Q: {{ message.content }} A:{% endfor %}"
    path.write_text(json.dumps({**content, "chat_template": template}))

    assert text_of(load(folder)) == "Q: Hello there A:"


def test_a_model_without_a_template_encodes_text_but_refuses_conversations(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    folder = copied(checkpoint_of("llama"), tmp_path)
    (folder / "chat_template.jinja").unlink()
    tokenizer = load(folder)

    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    with pytest.raises(RequestError, match="this model has no chat template"):
        tokenizer.prompt(ASK)


def test_a_template_that_writes_no_message_is_refused_when_the_model_is_loaded(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    path = tmp_path / "mute.jinja"
    path.write_text("{{ bos_token }}hello")

    with pytest.raises(CheckpointError, match="cannot write a plain message of role 'user'"):
        load(checkpoint_of("llama").path, chat_template=str(path))


def test_a_template_that_leaves_out_a_role_is_no_silent_loss(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    path = tmp_path / "users.jinja"
    path.write_text("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    messages = [*ASK, Message.of("tool", "the result")]

    with pytest.raises(RequestError) as caught:
        load(checkpoint_of("llama").path, chat_template=str(path)).prompt(messages)
    assert str(caught.value) == (
        "the model's chat template leaves out what this message of role 'tool' says"
    )
    assert caught.value.param == "messages[1]"


def test_tools_are_refused_where_the_template_knows_none(checkpoint_of: CheckpointOf) -> None:
    with pytest.raises(RequestError, match="takes no tools"):
        load(checkpoint_of("gemma2").path).prompt(ASK, tools=[{"type": "function"}])


def test_a_vision_template_that_wants_plain_text_gets_placeholders_in_it(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    import zoo
    from vlmkit.ask.image import Image
    from vlmkit.ask.message import ImagePart

    path = tmp_path / "plain.jinja"
    path.write_text("{% for message in messages %}Q: {{ message['content'] }} A:{% endfor %}")
    tokenizer = load(checkpoint_of("llava").path, chat_template=str(path))
    parts = (TextPart("Look "), ImagePart(Image.open(zoo.picture(1))), TextPart(" here"))
    prompt = tokenizer.prompt([Message("user", parts)])

    assert len(prompt.media) == 1
    assert tokenizer.decode(prompt.token_ids).split() == ["Q:", "Look", "here", "A:"]


LOOKS_AT_ALL = "{% for m in messages %}{% for n in messages %}{{ n.role }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOKS_AT_ALL,
        LOOKS_AT_ALL.replace("{{ n.role }}", "{% if n['role'] == m.role %}{% endif %}"),
        "{% for m in messages %}{{ 'x' * 10_000 }}{% endfor %}",
        "{{ 'x' * 2_000_000 }}",
        "{{ [1] * 2_000_000 }}",
        "{{ 9 ** 999_999_999 }}",
    ],
)
def test_a_template_that_takes_too_long_is_stopped(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlmkit_hf.template, "MAX_STEPS", 2**16)
    template = ChatTemplate(source, {}, "m")
    with pytest.raises(RequestError, match="takes too long to write this conversation") as caught:
        template.render([{"role": "user"}] * 2000)
    assert caught.value.param == "messages"


def test_one_conversation_costs_another_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlmkit_hf.template, "MAX_STEPS", 2**16)
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}{{ 2 * 3 }}", {}, "m")
    for _ in range(4):  # more than one may take
        assert template.render([{"role": "user"}] * 2**15) == "user" * 2**15 + "6"
