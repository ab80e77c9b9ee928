"""Chat templates: their files, sandbox, limits and failures."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit_hf.templates.template
from vlmkit.errors import CheckpointError, ConfigError, RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.message import Message, TextPart
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.templates.template import ChatTemplate
from vlmkit_hf.text_side.tokenizer import HfTokenizer

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
def test_a_template_cannot_escape_its_sandbox(attack: str) -> None:
    with pytest.raises(RequestError, match="cannot write this conversation"):
        render(attack)


def test_a_template_that_is_not_jinja_is_a_broken_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="the chat template of 'm' is not valid Jinja"):
        ChatTemplate("{% for %}", {}, "m")


def test_a_refusal_shows_the_templates_message() -> None:
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


def test_the_operator_template_takes_precedence(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for message in messages %}Q: {{ message.content }} A:{% endfor %}")
    tokenizer = load(checkpoint_of("qwen2").path, chat_template=str(path))

    assert text_of(tokenizer) == "Q: Hello there A:"


def test_a_missing_operator_template_is_a_config_error(
    checkpoint_of: CheckpointOf,
) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.chat_template '/no/where' cannot be read"):
        load(checkpoint_of("qwen2").path, chat_template="/no/where")


@pytest.mark.parametrize("place", ["chat_template.json", "tokenizer_config.json"])
def test_a_template_is_found_in_older_files(
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


def test_a_template_that_leaves_out_a_role_is_refused(
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


def test_tools_are_refused_if_the_template_does_not_support_them(
    checkpoint_of: CheckpointOf,
) -> None:
    with pytest.raises(RequestError, match="takes no tools"):
        load(checkpoint_of("gemma2").path).prompt(ASK, tools=[{"type": "function"}])


def test_a_vision_template_for_plain_text_gets_placeholders(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    import zoo
    from vlmkit.types.image import Image
    from vlmkit.types.message import ImagePart

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
    monkeypatch.setattr(vlmkit_hf.templates.template, "MAX_STEPS", 2**16)
    template = ChatTemplate(source, {}, "m")
    with pytest.raises(RequestError, match="takes too long to write this conversation") as caught:
        template.render([{"role": "user"}] * 2000)
    assert caught.value.param == "messages"


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_hostile_templates_stay_within_limits_of_time_and_memory() -> None:
    program = Path(__file__).with_name("hostile_templates.py")
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=900, check=True
    )

    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a'|center(5) ~ 'b'.ljust(3) }}|", "  a  b  |"),
        ("{{ '%05.2f|%s' % (1.5, ['x']) }}", "01.50|['x']"),
        ("{{ '{:>4}{!r}'.format(1, 'x') }}", "   1'x'"),
        ("{{ ('a b'.split(' ') + ['c'])[1:]|join(',') }}", "b,c"),
        (
            "{{ {'a': [1, {'b': none}]}|tojson(indent=1) }}",
            '{\n "a": [\n  1,\n  {\n   "b": null\n  }\n ]\n}',
        ),
        (
            "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.last }}{% endfor %}",
            "2False4True",
        ),
        ("{% for x in [[1], 2] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
        (
            "{% macro m(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call m(1) %}x{% endcall %}",
            "<1x>",
        ),
        ("{{ [3, 1, 2]|sort|map('string')|select('ne', '2')|list }}", "['1', '3']"),
        ("{{ [{'n': 2}, {'n': 3}]|sum(attribute='n') }}{{ 7 // 2 }}{{ 2 ** 3 }}", "538"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x|upper|replace('A', 'b') }}", "b1"),
        ("{{ 'a' in ['a'] and (1, 2) == (1, 2) and {'a': 1}.get('a') == 1 }}", "True"),
        ("{{ messages[0].role|trim|indent(2, true) }}{{ 2.345|round(1) }}", "  user2.3"),
    ],
)
def test_limits_do_not_change_the_output_of_a_template(source: str, text: str) -> None:
    assert render(source) == text


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for %}", r"is not valid Jinja \(line 1\)"),
        ("{{ nothing.at.all }}", "cannot write a plain message of role 'user'"),
        (ENDLESS, "takes too long, or too much memory, to write a plain message"),
        ("{{ 'x'|center(3000000000) }}", "takes too long, or too much memory, to write"),
    ],
)
@pytest.mark.parametrize(
    ("file", "called"),
    [
        ("chat_template.jinja", "the chat template in 'chat_template.jinja' of 'm'"),
        (
            "additional_chat_templates/tool_use.jinja",
            "the chat template 'tool_use' in 'additional_chat_templates/tool_use.jinja' of 'm'",
        ),
    ],
)
def test_a_bad_template_is_named_when_the_model_is_loaded(
    checkpoint_of: CheckpointOf, tmp_path: Path, source: str, problem: str, file: str, called: str
) -> None:
    folder = copied(checkpoint_of("qwen2"), tmp_path)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(source)

    with pytest.raises(CheckpointError, match=f"{called} {problem}"):
        load(folder)


def test_a_bad_named_template_among_settings_is_named(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    folder = copied(checkpoint_of("qwen2"), tmp_path)
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    named = [
        {"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {"name": "tool_use", "template": "{% for %}"},
    ]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))

    with pytest.raises(
        CheckpointError,
        match=r"the chat template 'tool_use' in 'tokenizer_config\.json' of 'm' is not valid Jinja",
    ):
        load(folder)


def test_each_rendering_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlmkit_hf.templates.template, "MAX_STEPS", 2**16)
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}{{ 2 * 3 }}", {}, "m")
    for _ in range(4):  # more than the limit of one rendering
        assert template.render([{"role": "user"}] * 2**15) == "user" * 2**15 + "6"
