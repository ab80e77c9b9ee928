"""The hooks of vlmkit-mock. Components are imported when they are built."""

from pathlib import Path

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings

VLMKIT_API = (1, 0)
NAME = "mock"


def _cannot_serve(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.model_type == NAME else "it serves only the packaged model 'mock'"


def _build_tokenizer(_: BuildContext) -> Tokenizer:
    from vlmkit_mock.tokenizer import MockTokenizer

    return MockTokenizer()


def _build_vision_encoder(context: BuildContext) -> MediaEncoder:
    from vlmkit_mock.vision_encoder import MockVisionEncoder

    return MockVisionEncoder(context.settings)


def _build_engine(context: BuildContext) -> Engine:
    from vlmkit_mock.engine import MockEngine

    return MockEngine(context.settings)


@hookimpl
def vlmkit_register_tokenizers(registry: Registry[Tokenizer]) -> None:
    """Register ``tokenizer.use = "mock"``."""
    registry.add(
        NAME, _build_tokenizer, cannot_serve=_cannot_serve, description="one token for each byte"
    )


@hookimpl
def vlmkit_register_media_encoders(registry: Registry[MediaEncoder]) -> None:
    """Register ``media_encoder.use = "mock"``."""
    registry.add(
        NAME,
        _build_vision_encoder,
        cannot_serve=_cannot_serve,
        settings=MockEncoderSettings,
        description="features from a picture's size and digest",
    )


@hookimpl
def vlmkit_register_engines(registry: Registry[Engine]) -> None:
    """Register ``engine.use = "mock"``."""
    registry.add(
        NAME,
        _build_engine,
        cannot_serve=_cannot_serve,
        settings=MockEngineSettings,
        description="answers what its prompt tells it to, as slowly and wrongly as asked",
    )


@hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Register the model ``mock``."""
    registry.add_packaged(
        NAME,
        Path(__file__).with_name("model"),
        description="no weights; for tests of servers and clients",
    )
