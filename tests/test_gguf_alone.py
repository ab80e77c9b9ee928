"""A GGUF file alone answers as the folder that it was made from, with the same tokens."""

import json
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmkit
from vlmkit.cli import run as command
from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import gguf  # noqa: E402 - beside torch
import openai  # noqa: E402
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402
from transformers.integrations.gguf.gguf_tokenizer_mapping import (  # noqa: E402
    GGUF_PRE_TOKENIZER_SPLITS,
)

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import (  # noqa: E402
    folders,
    gguf_alone as fields,
    gguf_families,
    gguf_folders,
)
from quantized_checkpoints.gguf_folders import mutated_headers  # noqa: E402
from vlmkit_hf import plugin  # noqa: E402
from vlmkit_quantized import gguf_alone, gguf_config, gguf_tokenizer  # noqa: E402
from vlmkit_quantized.errors import FormatError  # noqa: E402
from vlmkit_quantized.gguf_file import read_header  # noqa: E402
from vlmkit_quantized.gguf_metadata import Metadata  # noqa: E402
from vlmkit_testing import ModelContract  # noqa: E402
from zoo.tokenizer import CORPUS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread", "_cache")]

Saved = Callable[[str], Path]
Source = Callable[[str], Path]
ENGINE = {"use": "torch", "cache_tokens": 256}
FAMILIES = {
    name: made.arch
    for name, made in (gguf_families.FAMILIES | gguf_families.RECURRENT).items()
    if gguf.MODEL_ARCH_NAMES[made.arch] in gguf_config.MODELS
}
WITH_MAMBA = {"jamba", "mamba", "mamba2"}
"""Families that vlmkit-torch does not run. The tests of vlmkit-llama compare their answers."""


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def source(saved: Saved, made_once: Callable[..., Path]) -> Source:
    """Return a function that gives a checkpoint of which a file can be made."""

    def made(family: str) -> Path:
        values = fields.VALUES.get(family, {})
        return made_once(
            f"alone-{family}",
            lambda folder: gguf_families.save(family, folder, saved("llama"), **values),
        )

    return made


def alone(
    source: Path, place: Path, kind: str = "Q8_0", **how: Any
) -> tuple[Path, folders.Quantized]:
    """Return a file without a folder, and the folders that it was made with."""
    family = source.name.rpartition("-")[2]
    more = fields.fields_of(source, family)
    made = gguf_folders.make(source, place, kind, **({"more": more} | how))
    return (made.folder / gguf_folders.FILE).rename(place / f"{family}-{kind}.gguf"), made


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WITH_MAMBA])
def test_a_file_alone_answers_as_the_dense_model(
    family: str, source: Source, tmp_path: Path
) -> None:
    file, made = alone(source(family), tmp_path)
    asked = runner.requests("llama")
    answers = runner.expected("llama", made.plain, asked, banned=())
    with pipeline.load(file, sizes={"dtype": "float32"}) as served:
        streamed = pipeline.stream_all(served, asked)

    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]


@pytest.mark.slow
def test_a_file_alone_is_exported_as_a_folder_is(source: Source, tmp_path: Path) -> None:
    pytest.importorskip("vlmkit_onnx")
    file, made = alone(source("llama"), tmp_path)
    shutil.copy(file, made.folder / gguf_folders.FILE)
    folders.edit(made.folder, dtype="bfloat16")
    asked = runner.requests("llama")[:1]
    answers = []
    for model in (made.folder, file):
        with pipeline.load(model, "onnx", {"precision": "fp32"}) as served:
            ((_, samples),) = pipeline.stream_all(served, asked)
        answers.append([sample.token_id for sample in samples])
    assert answers[0] == answers[1]


def test_every_architecture_is_compared() -> None:
    compared = {gguf.MODEL_ARCH_NAMES[arch] for arch in FAMILIES.values()}
    assert compared == gguf_config.MODELS.keys()


def test_rotations_of_llama_3_are_recognized(source: Source, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=rope
    )
    plain, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    factors = (1 / 5e5 ** (torch.arange(0, 128, 2) / 128) / plain).float().numpy()
    file = _header(
        tmp_path, arrays=[("rope_freqs.weight", factors)], heads=2, hidden=256, theta=5e5
    )
    found = gguf_config.config_of(Metadata("m", read_header(file)))
    assert found["rope_parameters"] == rope
    wrong = factors.copy()
    wrong[20] *= 1.5
    file = _header(tmp_path, arrays=[("rope_freqs.weight", wrong)], heads=2, hidden=256, theta=5e5)
    with pytest.raises(Exception, match=r"'rope_freqs\.weight' that is not Llama 3's"):
        gguf_config.config_of(Metadata("m", read_header(file)))


def _header(place: Path, *, arrays: list[Any] = (), heads: int, hidden: int, theta: float) -> Path:
    """Write a header of Llama, with an embedding."""
    path = place / "header.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(heads)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(hidden)
    writer.add_block_count(1)
    writer.add_context_length(131072)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    for name, array in [("token_embd.weight", np.zeros((4, hidden), np.float32)), *arrays]:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Tokenizers.

TEXTS = [
    *CORPUS,
    "",
    " ",
    "  two  spaces and\ttabs\t\t",
    "line\nline\r\n\n\nend\n",
    "I'm sure they'll've SEEN it's 12345 67,890.12!!! (really?)",
    "naïve café Ünïcödé e\u0301 \u1112\u1161\u11ab 漢字 かな 한글",
    "\U0001f600\U0001f469\u200d\U0001f52c",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}\n",
    "CamelCaseWords and snake_case, PASCALCase 3rd/4th a/b//c",
    "<|eot_id|> and <think> in a text",
]


def trained(pre: str) -> tokenizers.Tokenizer:
    """Return a small byte-level tokenizer that splits as models with this pre-tokenizer do."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    made = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if pre in GGUF_PRE_TOKENIZER_SPLITS:
        split = Regex(GGUF_PRE_TOKENIZER_SPLITS[pre])
        parts = [
            pre_tokenizers.Split(split, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    if pre in ("smollm", "starcoder", "refact", "command-r"):
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pre in ("qwen2", "command-r"):
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_special_tokens(["<|begin|>", "<|eot_id|>"])
    made.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    return made


def written(place: Path, write: Callable[[gguf.GGUFWriter], object]) -> Metadata:
    """Return a header with a tokenizer."""
    path = place / "tokenizer.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Metadata(path.name, read_header(path))


def read(found: Metadata) -> tokenizers.Tokenizer:
    whole, _ = gguf_tokenizer.tokenizer_of(found)
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


def with_byte_level(
    original: tokenizers.Tokenizer, pre: str, **changed: Any
) -> Callable[[gguf.GGUFWriter], None]:
    """Return what writes a byte-level tokenizer."""

    def write(writer: gguf.GGUFWriter) -> None:
        whole = json.loads(original.to_str())
        added = {each["id"]: each for each in whole["added_tokens"]}
        tokens = [original.id_to_token(number) for number in range(original.get_vocab_size())]
        types = [
            gguf.TokenType.NORMAL
            if number not in added
            else gguf.TokenType.CONTROL
            if added[number]["special"]
            else gguf.TokenType.USER_DEFINED
            for number in range(len(tokens))
        ]
        merges = [" ".join(merge) for merge in whole["model"]["merges"]]
        writer.add_tokenizer_model(changed.get("model", "gpt2"))
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(changed.get("tokens", tokens))
        writer.add_token_types(changed.get("types", types))
        writer.add_token_merges(changed.get("merges", merges))
        writer.add_bos_token_id(changed.get("bos", tokens.index("<|begin|>")))
        if "adds_begin" in changed:
            writer.add_add_bos_token(changed["adds_begin"])

    return write


PRES = ["gpt-2", "llama-bpe", "qwen2", "smollm", "starcoder", "refact", "command-r", "tekken"]
PRES += ["gpt-4o", "dbrx"]


@pytest.mark.parametrize("pre", PRES)
def test_byte_level_tokens_are_those_of_the_original_tokenizer(pre: str, tmp_path: Path) -> None:
    original = trained(pre)
    found = read(written(tmp_path, with_byte_level(original, pre, adds_begin=False)))

    @given(text=st.one_of(st.text(), st.text(alphabet="aA1 \n\r\t'sé.,/😀", max_size=40)))
    @settings(max_examples=150)
    def check(text: str) -> None:
        wanted = original.encode(text).ids
        assert found.encode(text).ids == wanted, text
        assert found.decode(wanted) == original.decode(wanted)

    check()
    for text in TEXTS:
        assert found.encode(text).ids == original.encode(text).ids, text


@pytest.mark.parametrize(("pre", "is_added"), [("gpt-2", False), ("llama-bpe", True)])
def test_a_text_begins_with_a_token_if_the_file_or_its_pre_tokenizer_says_so(
    pre: str, is_added: bool, tmp_path: Path
) -> None:
    original = trained(pre)
    begin = original.token_to_id("<|begin|>")
    for stated, wanted in ((None, is_added), (True, True), (False, False)):
        how = {} if stated is None else {"adds_begin": stated}
        found = read(written(tmp_path, with_byte_level(original, pre, **how)))
        assert (found.encode("a").ids[0] == begin) is wanted
        assert begin not in found.encode("a", add_special_tokens=False).ids


@pytest.mark.parametrize("has_prefix", [True, False])
def test_pieces_are_those_of_sentencepiece(has_prefix: bool, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(re.sub(r"\s+", " ", text) for text in TEXTS * 4))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=520,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=has_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        character_coverage=0.99,
        user_defined_symbols=["<table>"],
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    numbers = range(original.vocab_size())
    kinds = (
        (original.is_unknown, gguf.TokenType.UNKNOWN),
        (original.is_control, gguf.TokenType.CONTROL),
        (original.is_byte, gguf.TokenType.BYTE),
        (lambda number: original.id_to_piece(number) == "<table>", gguf.TokenType.USER_DEFINED),
        (lambda _: True, gguf.TokenType.NORMAL),
    )

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([original.id_to_piece(number) for number in numbers])
        writer.add_token_scores([original.get_score(number) for number in numbers])
        types = [next(kind for is_kind, kind in kinds if is_kind(number)) for number in numbers]
        writer.add_token_types(types)
        writer.add_bos_token_id(original.bos_id())
        writer.add_eos_token_id(original.eos_id())
        writer.add_add_space_prefix(has_prefix)

    found = read(written(tmp_path, write))
    assert found.encode("a").ids[0] == original.bos_id()

    @given(text=st.text(alphabet="aeinst AE1 \n\té漢😀", max_size=40))
    @settings(max_examples=150)
    def check(text: str) -> None:
        wanted = original.encode(text)
        assert found.encode(text, add_special_tokens=False).ids == wanted, text
        assert found.decode(wanted) == original.decode(wanted)

    check()
    # SentencePiece puts a space before a user-defined piece at the beginning; others do not.
    for text in [*TEXTS, *([] if has_prefix else ["<table>", "x<table> y"])]:
        wanted = original.encode(text)
        assert found.encode(text, add_special_tokens=False).ids == wanted, text


# Commands and clients.


def test_the_commands_take_a_file(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, made = alone(source("llama"), tmp_path)
    (wanted,) = runner.expected("llama", made.plain, runner.requests("llama")[1:2], banned=())
    sets = ["--set", "engine.use=torch", "--set", "engine.cache_tokens=256"]
    assert command(["doctor", str(file), "--json", *sets]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == {"name": file.name, "family": "llama"}
    assert any("gguf: 23 of" in verdict["how"] for verdict in found["verdicts"])
    options = ["--temperature", "0", "--max-tokens", "10", *sets]
    assert command(["ask", str(file), "Hi!", *options]) == 0
    text = transformers.AutoTokenizer.from_pretrained(made.plain).decode(
        wanted.token_ids, skip_special_tokens=True
    )
    assert capsys.readouterr().out.strip() == text.strip()


@pytest.mark.posix
def test_a_server_answers_with_a_file(source: Source, tmp_path: Path) -> None:
    file, made = alone(source("llama"), tmp_path)
    log = tmp_path / "log"
    sets = ("--set", "engine.use=torch", "--set", "engine.cache_tokens=256")
    serve = [sys.executable, "-m", "vlmkit", "serve", str(file), "--port", "0", *sets]
    with log.open("wb") as said, subprocess.Popen(serve, stderr=said) as process:
        try:
            deadline = time.monotonic() + 300
            while " is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            url = re.search(r"listening on (\S+)", log.read_text())[1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                assert [model.id for model in client.models.list()] == [file.name]
                answer = client.chat.completions.create(
                    model=file.name,
                    messages=[{"role": "user", "content": "Hi!"}],
                    temperature=0,
                    max_tokens=runner.NUM_NEW,
                    extra_body={"ignore_eos": True},
                )
        finally:
            process.kill()
    (wanted,) = runner.expected("llama", made.plain, runner.requests("llama")[1:2], banned=())
    original = transformers.AutoTokenizer.from_pretrained(made.plain)
    assert answer.choices[0].message.content == original.decode(wanted.token_ids)


# Bad input.


def field(name: str, value: Any) -> Callable[[gguf.GGUFWriter], None]:
    """Return what changes a field of a file."""

    def write(writer: gguf.GGUFWriter) -> None:
        kind = gguf.GGUFValueType.get_type(value)
        if isinstance(value, int) and not isinstance(value, bool):
            kind = gguf.GGUFValueType.UINT32
        writer.kv_data[0][name] = gguf.GGUFValue(value=value, type=kind)

    return write


def without(name: str) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: writer.kv_data[0].pop(name)


TOKENS = "tokenizer.ggml"
FLAWS = {
    "has the architecture 'rwkv7', which is not read": field("general.architecture", "rwkv7"),
    "needs a text in 'general.architecture'": without("general.architecture"),
    "has a tokenizer 't5', which is not supported": field(f"{TOKENS}.model", "t5"),
    "splits texts by 'jais-2'": field(f"{TOKENS}.pre", "jais-2"),
    "splits texts by 'no name'": without(f"{TOKENS}.pre"),
    "needs a text in 'tokenizer.ggml.model'": without(f"{TOKENS}.model"),
    "has 0 tokens": without(f"{TOKENS}.tokens"),
    "numbers in 'tokenizer.ggml.token_type'": field(f"{TOKENS}.token_type", [1, 2]),
    "has no 'tokenizer.ggml.merges'": without(f"{TOKENS}.merges"),
    "merges tokens that it does not have: 'x yy'": field(f"{TOKENS}.merges", ["x yy"]),
    "and 99999 in 'tokenizer.ggml.eos_token_id'": field(f"{TOKENS}.eos_token_id", 99999),
    "has no bos_token_id": without(f"{TOKENS}.bos_token_id"),
    "needs true or false in 'tokenizer.ggml.add_bos_token'": field(f"{TOKENS}.add_bos_token", 1),
    "needs one number of 0 to 2147483647 in 'llama.block_count'": without("llama.block_count"),
    "has 4000000 layers": field("llama.block_count", 4_000_000),
    "needs a number above zero in 'llama.attention.head_count'": field(
        "llama.attention.head_count", 0
    ),
    "needs a number above zero in 'llama.attention.key_length'": field(
        "llama.attention.key_length", 0
    ),
    "needs a number above zero in 'llama.feed_forward_length'": field(
        "llama.feed_forward_length", 0
    ),
    "has 4 heads, which is no multiple of 3 in 'llama.attention.head_count_kv'": field(
        "llama.attention.head_count_kv", 3
    ),
    "rotates 8 of 16 numbers of a head ('llama.rope.dimension_count')": field(
        "llama.rope.dimension_count", 8
    ),
    "rotates 15 of 16 numbers": field("llama.rope.dimension_count", 15),
    "has a value in 'llama.attention.causal' that": field("llama.attention.causal", False),
    "has a value in 'llama.rope.scale_linear' that": field("llama.rope.scale_linear", 4.0),
    "has a value in 'llama.rope.scaling.yarn_beta_fast' that": field(
        "llama.rope.scaling.yarn_beta_fast", [32.0, 1.0]
    ),
    "has no tensor 'rope_factors_long.weight'": field("llama.rope.scaling.type", "longrope"),
    "above zero in 'llama.attention.layer_norm_rms_epsilon'": field(
        "llama.attention.layer_norm_rms_epsilon", -1.0
    ),
    "above zero in 'llama.rope.scaling.factor'": field("llama.rope.scaling.factor", 0.0),
    ".gguf' needs a text in 'general.architecture'": field("general.architecture", [1, 2]),
    "has a token of 2000 letters in 'tokenizer.ggml.tokens'": field(
        f"{TOKENS}.tokens", ["a" * 2000, *map(str, range(383))]
    ),
    "has 383 tokens in 'tokenizer.ggml.tokens', and 384 embeddings": field(
        f"{TOKENS}.tokens", list(map(str, range(383)))
    ),
    "has chat templates of 2000000 letters in 'tokenizer.chat_template'": field(
        "tokenizer.chat_template", "a" * 2_000_000
    ),
    "has tokens of the unknown type 9 in": field(f"{TOKENS}.token_type", [9] * 384),
    "has values of another size than keys": field("llama.attention.value_length", 5),
    "scales rotations by 'su'": field("llama.rope.scaling.type", "su"),
    "needs a finite number above zero in 'llama.rope.freq_base'": field(
        "llama.rope.freq_base", "much"
    ),
    "needs a text in 'tokenizer.chat_template'": field("tokenizer.chat_template", 3),
    "is one of several parts": field("split.count", 3),
}


@pytest.mark.parametrize("problem", FLAWS)
def test_a_file_that_says_too_little_or_too_much_is_rejected_by_name(
    problem: str, source: Source, tmp_path: Path
) -> None:
    write = fields.fields_of(source("llama"), "llama")

    def more(writer: gguf.GGUFWriter) -> None:
        write(writer)
        FLAWS[problem](writer)

    file, _ = alone(source("llama"), tmp_path, more=more)
    with pytest.raises(CheckpointError, match=re.escape(problem)) as caught:
        vlmkit.load(file, engine=ENGINE)
    assert file.name in str(caught.value)
    assert caught.value.hint


def test_equal_tokens_and_bytes_that_are_no_text_are_rejected(tmp_path: Path) -> None:
    original = trained("gpt-2")
    tokens = [original.id_to_token(number) for number in range(original.get_vocab_size())]
    for changed, problem in (
        ([*tokens[:-3], tokens[0], *tokens[-2:]], "has two equal tokens"),
        ([*tokens[:-3], "", *tokens[-2:]], "or an empty one"),
        ([*tokens[:-3], b"\xff\xfe", *tokens[-2:]], "needs an array of texts"),
    ):
        found = written(tmp_path, with_byte_level(original, "gpt-2", tokens=changed))
        with pytest.raises(FormatError, match=problem):
            gguf_tokenizer.tokenizer_of(found)


@pytest.mark.parametrize(
    ("num", "problem"), [(257, "a piece of 257 letters"), (10**6, "a token of 1000000 letters")]
)
def test_a_long_piece_is_rejected_in_little_time(num: int, problem: str, tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a" * num])
        writer.add_token_scores([0.0, 0.0])
        writer.add_token_types([gguf.TokenType.UNKNOWN, gguf.TokenType.NORMAL])

    with pytest.raises(FormatError, match=problem):
        gguf_tokenizer.tokenizer_of(written(tmp_path, write))


def test_very_many_control_tokens_are_rejected(tmp_path: Path) -> None:
    tokens = [f"<|{number:060}|>" for number in range(20_000)]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b", "ab", *tokens])
        writer.add_token_types([gguf.TokenType.NORMAL] * 3 + [gguf.TokenType.CONTROL] * 20_000)
        writer.add_token_merges(["a b"])

    with pytest.raises(FormatError, match="has control tokens of 1280000 letters in"):
        gguf_tokenizer.tokenizer_of(written(tmp_path, write))


@pytest.mark.slow
def test_pieces_that_are_joined_in_very_many_ways_are_rejected_in_little_memory(
    tmp_path: Path,
) -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 600)))
    ends = [(at, at + size) for size in range(1, 257) for at in range(len(text) - size)]
    tokens = ["<unk>", *(text[at:end] for at, end in ends)]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        normal = [gguf.TokenType.NORMAL] * (len(tokens) - 1)
        writer.add_token_types([gguf.TokenType.UNKNOWN, *normal])

    found = written(tmp_path, write)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="that are joined in over 2097152 ways"):
            gguf_tokenizer.tokenizer_of(found)
        assert tracemalloc.get_traced_memory()[1] < 2**31
    finally:
        tracemalloc.stop()


NUM_MUTATED = 150


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3", "qwen3_moe"])
def test_a_mutated_header_is_rejected_or_read(family: str, source: Source, tmp_path: Path) -> None:
    file, _ = alone(source(family), tmp_path)
    num_rejected = 0
    for _ in mutated_headers(file, NUM_MUTATED):
        try:
            found = gguf_alone.derived(Checkpoint("m", file.parent, file=file))
        except VlmkitError:
            num_rejected += 1
            continue
        assert found.config["model_type"]
    assert num_rejected > NUM_MUTATED // 10


class TestFiles(ModelContract):
    plugin = plugin
    name = "gguf"

    @pytest.fixture(autouse=True)
    def _two(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "two").mkdir()
        self._files = [alone(source(family), tmp_path / "two")[0] for family in ("llama", "qwen2")]

    def files(self) -> list[Path]:
        return self._files
