"""Fixtures: GGUF files of tiny random models, and components that read them."""

import functools
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from running_server import Running

NEEDED = ("torch", "transformers", "gguf", "xllamacpp")
if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    collect_ignore_glob = ["test_*.py"]

ROW = 256  # of the blocks of K formats
TINY = {
    "num_threads": 1,
    "cache_tokens": 768,
    "max_chunk_tokens": 96,
    "max_sequence_tokens": 200,
    "max_sequences": 12,
    "cache_dtype": "f32",
}
SERVED = {"use": "llama", "cache_tokens": 8192, "num_threads": 1, "cache_dtype": "f32"}
SEEING = {
    "gemma3": {
        "text_config": {
            "num_hidden_layers": 6,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        }
    },
    "qwen2_5_vl": {"vision_config": {"window_size": 112}},
}
"""Values of configurations with images that files do not state, as llama.cpp assumes them."""

ALONE = ("gemma3", "mistral3", "smolvlm")
"""Families whose files need no folder."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """See the workspace's conftest."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def made(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that gives a folder: ``model.gguf``, and the same in ``plain/FAMILY``."""
    from quantized_checkpoints import gguf_alone, gguf_families, gguf_folders

    def make(family: str, kind: str = "F16", **values: Any) -> Path:
        name = "-".join(map(str, ("llama.cpp", family, kind, *values.values())))
        fixed = gguf_alone.VALUES.get(family, {})
        wide = {"hidden_size": ROW, "intermediate_size": ROW} if kind.endswith("_K") else {}

        def fill(folder: Path) -> None:
            source = folder / f"source-{family}"
            source.mkdir()
            gguf_families.save(family, source, saved("llama"), **(fixed | wide | values))
            if family == "smolvlm":
                _add_blank_line(source)
            more = gguf_alone.fields_of(source, family)
            made = gguf_folders.make(source, folder, kind, more=more)
            (made.folder / gguf_folders.FILE).rename(folder / "model.gguf")

        return made_once(name, fill)

    return make


@pytest.fixture
def build(made: Callable[..., Path]) -> Callable[..., Any]:
    """Return a function that builds an engine on a tiny cache."""
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.registry import BuildContext
    from vlmkit_llama.build import build_engine
    from vlmkit_llama.settings import EngineSettings
    from vlmkit_quantized.gguf_alone import derived

    def make(family: str, kind: str = "F16", **settings: Any) -> Any:
        file = made(family, kind) / "model.gguf"
        checkpoint = derived(Checkpoint(family, file.parent, file=file))
        return build_engine(BuildContext("", checkpoint, EngineSettings(**(TINY | settings))))

    return make


@pytest.fixture(scope="session")
def pair(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that gives a folder of a model with images.

    It has ``model.gguf`` and ``mmproj.gguf``, and the same weights in ``plain/FAMILY``. It has
    ``config.json`` and the files of the text side, too, if the family needs them.
    """
    from quantized_checkpoints import gguf_folders, gguf_pairs

    def make(family: str, kind: str = "F32", tower: str = "F32") -> Path:
        def fill(folder: Path) -> None:
            source, row = folder / "source", gguf_pairs.PAIRS[family]
            values = _wide(family) if kind.endswith("_K") else SEEING.get(family)
            gguf_pairs.save(saved(family), source, row, values)
            if family == "smolvlm":
                _add_blank_line(source)
            how = _pixtral(source) if family == "mistral3" else {}
            more = _fields(source, family, row.text)
            made = gguf_pairs.make(source, folder, family, kind, tower, more=more, **how)
            (made.folder / gguf_folders.FILE).rename(made.folder / "model.gguf")
            (made.folder / gguf_pairs.PROJECTOR).rename(made.folder / "mmproj.gguf")
            for file in made.folder.iterdir():
                if family not in ALONE or file.suffix == ".gguf":
                    file.rename(folder / file.name)

        return made_once(f"llama.cpp-pair-{family}-{kind}-{tower}", fill)

    return make


def _wide(family: str) -> dict[str, Any]:
    """Return values of a configuration whose decoder fills the blocks of K formats."""
    fixed = SEEING.get(family, {})
    text = {"hidden_size": ROW, "intermediate_size": ROW} | fixed.get("text_config", {})
    vision = {"out_hidden_size": ROW} if family.startswith("qwen") else {}
    return {"text_config": text, "vision_config": vision | fixed.get("vision_config", {})}


def _fields(source: Path, family: str, text: str) -> Callable[[Any], None]:
    """Return what writes the fields of the model's file."""
    import transformers

    from quantized_checkpoints import gguf_alone

    fields = gguf_alone.fields_of(source, text, "" if family == "gemma3" else "gpt-2")
    config = transformers.AutoConfig.from_pretrained(source)

    def write(writer: Any) -> None:
        fields(writer)
        if sections := config.get_text_config().rope_parameters.get("mrope_section"):
            writer.add_rope_dimension_sections([*sections, 0])
        if deep := getattr(config.vision_config, "deepstack_visual_indexes", None):
            writer.add_num_deepstack_layers(len(deep))

    return write


def _pixtral(source: Path) -> dict[str, Any]:
    """Return how a file has the token that the library inserts between rows of an image."""
    import gguf

    from quantized_checkpoints import folders

    weights = folders.tensors(source)["language_model.model.embed_tokens.weight"]
    row = weights[_token(source, "[IMG_BREAK]")].float().numpy()

    def change(arrays: dict[str, Any]) -> None:
        arrays["v.token_embd.img_break"] = (row, gguf.GGMLQuantizationType.F32)

    return {"change": change, "arch": gguf.MODEL_ARCH.LLAMA}


def _add_blank_line(folder: Path) -> None:
    """Replace a word by a token that the library writes between tiles and the whole image."""
    file = folder / "tokenizer.json"
    model = (whole := json.loads(file.read_text()))["model"]
    last = max(model["vocab"], key=model["vocab"].__getitem__)
    model["vocab"]["ĊĊ"] = model["vocab"].pop(last)
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) != last]
    file.write_text(json.dumps(whole))


def _token(folder: Path, text: str) -> int:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(each["id"] for each in added if each["content"] == text)


class Parts:
    """Builds the components of a model with images.

    Args:
        folder: of :func:`pair`.
    """

    def __init__(self, folder: Path) -> None:
        from vlmkit.config.plugin_loading import load_plugins
        from vlmkit.kit.checkpoint import Checkpoint
        from vlmkit.settings.plugins import PluginSettings
        from vlmkit_quantized.gguf_alone import derived

        self.folder = folder
        if (folder / "config.json").exists():
            self.checkpoint = Checkpoint("tiny", folder)
        else:
            self.checkpoint = derived(Checkpoint("tiny", folder, file=folder / "model.gguf"))
        self._registries = load_plugins(PluginSettings()).by_kind
        self.tokenizer = self._build("build_tokenizer")

    def encoder(self) -> Any:
        """Return a new encoder, with a projector of its own."""
        return self._build("build_encoder")

    def engine(self, **settings: Any) -> Any:
        """Return a new engine on a tiny cache."""
        from vlmkit_llama.settings import EngineSettings

        return self._build("build_engine", EngineSettings(**(TINY | settings)))

    def _build(self, name: str, settings: Any = None) -> Any:
        from vlmkit.plugins.registry import BuildContext
        from vlmkit_llama import build

        context = BuildContext(
            "tiny",
            self.checkpoint,
            settings,
            registries=self._registries,
            components={"engine": ("llama", TINY)},
        )
        return getattr(build, name)(context)


@pytest.fixture(scope="module")
def parts(
    pair: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Parts]:
    """Return a function that gives the components of a family with images."""

    @functools.cache
    def make(family: str, *kinds: str) -> Parts:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
            return Parts(pair(family, *kinds))

    return make


@pytest.fixture(scope="module")
def server(
    pair: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator["Running"]:
    """A server of a model with images and tools, by the name that the server's tests ask for.

    The ``ENGINE`` of a module has further settings.
    """
    from running_server import running

    import vlmkit
    from zoo.template import SMOLVLM_TOOLS

    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(SMOLVLM_TOOLS)
    with (
        vlmkit.load(
            pair("smolvlm") / "model.gguf",
            engine=SERVED | getattr(request.module, "ENGINE", {}),
            tokenizer={"use": "llama", "chat_template": str(template)},
        ) as model,
        running({"mock": model.runner}) as server,
    ):
        yield server
