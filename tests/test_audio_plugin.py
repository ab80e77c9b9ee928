"""A modality that the core does not know: a toy model with audio input, from file to answer."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import wave
from collections.abc import Mapping, Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmkit
from audio_plugin.plugin import (
    FRAME_SAMPLES,
    HearingEncoder,
    HearingEngine,
    HearingTokenizer,
    Sound,
    WavLoader,
)
from vlmkit.config import Config
from vlmkit.errors import EngineError, MediaError, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.plugins import PluginSettings
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import Message, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_testing import (
    EngineContract,
    MediaEncoderContract,
    MediaLoaderContract,
    TokenizerContract,
    picture,
)

PLUGIN = str(Path(__file__).with_name("audio_plugin") / "plugin.py")
FAILURES = (AssertionError, pytest.fail.Exception)


def samples(volume: float, num_frames: int = 6, tone: int = 3) -> Any:
    turn = np.arange(num_frames * FRAME_SAMPLES) * (2 * np.pi * tone / FRAME_SAMPLES)
    return (volume * np.sin(turn) * (2**15 - 1)).astype(np.int16)


def sound(volume: float, num_frames: int = 6, tone: int = 3) -> MediaPart:
    made = samples(volume, num_frames, tone) / np.float32(2**15)
    return MediaPart("audio", Sound(made))


def wav(volume: float, num_frames: int = 6, tone: int = 3) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples(volume, num_frames, tone).tobytes())
    return content.getvalue()


def png(image: vlmkit.Image) -> bytes:
    content = io.BytesIO()
    image.to_pil().save(content, "PNG")
    return content.getvalue()


def hearing(**sections: Any) -> vlmkit.Model:
    return vlmkit.load(
        "hearing", config=Config(plugins=PluginSettings(files=(PLUGIN,))), **sections
    )


# The components keep their contracts.


class TestHearingTokenizer(TokenizerContract):
    takes_images = False

    def make(self) -> HearingTokenizer:
        return HearingTokenizer()

    def special_texts(self) -> list[str]:
        return ["<end>", "<user>", "<answer>", "<sound>"]

    def media(self) -> list[MediaPart]:
        return [sound(0.1), sound(0.2), sound(0.1, tone=5), sound(0.1, 3)]


class TestHearingEncoder(MediaEncoderContract):
    def make(self) -> HearingEncoder:
        return HearingEncoder()

    def slots(self) -> list[MediaSlot]:
        media = [sound(0.1), sound(0.8), sound(0.1, 9)]
        return list(HearingTokenizer().prompt([Message.of("user", "?", media=media)]).media)


class TestHearingEngine(EngineContract):
    def make(self) -> HearingEngine:
        return HearingEngine()

    def prompts(self) -> list[Prompt]:
        requests = [("hi", []), ("How loud?", [sound(0.6)]), ("Is it? " * 6, [sound(0.1, 3)])]
        tokenizer = HearingTokenizer()
        return [tokenizer.prompt([Message.of("user", text, media=m)]) for text, m in requests]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(HearingEncoder().encode(prompt.media)))

    def twins(self) -> tuple[Prompt, Prompt]:
        requests = [Message.of("user", "How loud?", media=[sound(v)]) for v in (0.3, 0.9)]
        return HearingTokenizer().prompt(requests[:1]), HearingTokenizer().prompt(requests[1:])


class TestWavLoader(MediaLoaderContract):
    def make(self) -> WavLoader:
        return WavLoader()

    def files(self) -> list[bytes]:
        return [wav(0.1), wav(0.2), wav(0.1, 3)]


# From a file to an answer.


def test_answers_depend_on_the_sound(tmp_path: Path) -> None:
    file = tmp_path / "loud.wav"
    file.write_bytes(wav(0.9))
    with hearing() as model:
        assert model.facts.modalities == ("text", "audio")
        assert not model.facts.takes_images
        for source, answer in [
            (file, "loud"),
            (str(file), "loud"),
            (wav(0.2), "soft"),
            (sound(0.0), "silence"),
        ]:
            done = model.generate("How loud is it?", media=[source])
            assert done.choices[0].text == answer
        assert "".join(model.stream("How loud?", media=[wav(0.9)])) == "loud"
        assert model.generate("Nothing is shown").choices[0].text == "silence"


def test_a_repeated_sound_is_encoded_once_and_its_prefix_is_cached() -> None:
    with hearing() as model:
        first = model.generate("How loud is it?", media=[wav(0.9)])
        assert first.usage.cached_tokens == 0
        again = model.generate("How loud is it?", media=[wav(0.9)])
        assert again.choices[0].text == first.choices[0].text == "loud"
        assert again.usage.cached_tokens > 6
        other = model.generate("And now, how loud?", media=[sound(0.2, 9), wav(0.9)])
        assert other.choices[0].text == "loud"
        assert model.stats().counters["num_media_encoded"] == 2


def test_sounds_with_equal_placeholders_share_no_prefix() -> None:
    with hearing() as model:
        prompts = [("How loud is it?", 0.9), ("How loud is it?", 0.2), ("How loud is it?", 0.0)]
        found = [model.generate(text, media=[sound(v)]) for text, v in prompts]
        assert [done.choices[0].text for done in found] == ["loud", "soft", "silence"]
        assert len({done.usage.prompt_tokens for done in found}) == 1
        assert [done.usage.cached_tokens for done in found] == [0, 0, 0]


def test_usage_does_not_count_sounds_as_images() -> None:
    with hearing() as model:
        done = model.generate("How loud is it?", media=[sound(0.9)])
        assert done.usage.image_tokens == ()
        assert done.usage.prompt_tokens == len("How loud is it?") + 3 + 6


def test_sounds_in_a_batch_are_answered_as_alone() -> None:
    volumes = [0.0, 0.2, 0.9, 0.3, 1.0, 0.1, 0.0, 0.95]
    requests = [(f"No. {i}?", [sound(v, 3 + i), sound(v, 2)]) for i, v in enumerate(volumes)]
    with hearing() as model:
        alone = [model.generate(text, media=media).choices[0].token_ids for text, media in requests]
    with hearing(
        scheduler={"max_running": 3, "max_step_tokens": 16, "encoder_budget_tokens": 8}
    ) as model:
        streams = [model.submit(model.request(text, media=media)) for text, media in requests]
        assert [stream.result().choices[0].token_ids for stream in streams] == alone
        assert model.stats().num_running == 0


def test_contracts_of_the_audio_plugin_run_on_the_installed_package(tmp_path: Path) -> None:
    found = []
    for arguments in (["hearing", "hearing"], ["wav"]):
        done = subprocess.run(
            [sys.executable, "-m", "vlmkit", "plugins", "check", *arguments, "--json"],
            cwd=tmp_path,
            env={**os.environ, "VLMKIT_PLUGINS": json.dumps([PLUGIN])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found += json.loads(done.stdout)["findings"]
    held = {finding["kind"] for finding in found if finding["outcome"] == "held"}
    assert held == {"tokenizer", "engine", "media_loader", "model"}
    skipped = {f["kind"]: f["reason"] for f in found if f["sentence"] == "the whole contract"}
    assert skipped["media_encoder"] == "the model takes no images"


# Refused requests.


def test_a_medium_that_no_encoder_supports_is_refused_by_name() -> None:
    with (
        vlmkit.load("mock") as model,
        pytest.raises(RequestError, match="'mock' takes no media of kind 'audio'") as caught,
    ):
        model.generate("How loud is it?", media=[sound(0.9)])
    assert caught.value.code == "media_not_supported"
    with hearing() as model:
        with pytest.raises(RequestError, match="'hearing' takes no images"):
            model.generate("What is it?", images=[picture()])
        with pytest.raises(RequestError, match="'hearing' takes no images"):
            model.generate("What is it?", media=[png(picture())])


def test_number_and_size_of_media_are_bounded() -> None:
    with hearing(pipeline={"max_media": 2, "max_media_bytes": 6000}) as model:
        assert model.generate("?", media=[sound(0.9), sound(0.9)]).choices[0].text == "loud"
        for media in ([sound(0.1, 2)] * 3, [wav(0.1, 2)] * 3):
            with pytest.raises(MediaError, match="3 media are over the limit of 2") as caught:
                model.generate("?", media=media)
            assert caught.value.code == "too_many_media"
        for media in ([sound(0.1, 10)] * 2, [wav(0.1, 20)] * 2, [wav(0.1, 19)]):
            with pytest.raises(MediaError, match="over 6000 bytes") as caught:
                model.generate("?", media=media)
            assert caught.value.code == "media_too_large"


def test_a_decoded_file_may_use_the_memory_that_earlier_ones_left() -> None:
    with hearing(pipeline={"max_media_bytes": 6000}) as model:
        assert model.generate("?", media=[wav(0.9, 9)] * 2).choices[0].text == "loud"
        with pytest.raises(MediaError, match="a sound is over 2800 bytes"):  # and takes no memory
            model.generate("?", media=[wav(0.9, 10)] * 2)


def test_a_file_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with hearing(pipeline={"max_media_bytes": 100}) as model:
        with pytest.raises(MediaError, match="no media loader recognises") as caught:
            model.generate("?", media=[b"once upon a time"])
        assert {"image", "wav"} <= set(re.findall(r"\w+", str(caught.value)))
        with pytest.raises(MediaError, match="cannot be read"):
            model.generate("?", media=[tmp_path / "absent.wav"])
        (tmp_path / "long.wav").write_bytes(bytes(101))
        with pytest.raises(MediaError, match="over 100 bytes"):
            model.generate("?", media=[tmp_path / "long.wav"])


@pytest.mark.parametrize(
    ("media", "problem"),
    [
        ("absent.wav", "cannot be read"),
        (3, "a MediaPart, a FilePart, a path or bytes, and was int"),
        ([3], "a MediaPart, a FilePart, a path or bytes"),
    ],
)
def test_an_invalid_medium_is_refused(media: Any, problem: str) -> None:
    with hearing() as model, pytest.raises(RequestError, match=problem):
        model.generate("?", media=media)


@pytest.mark.parametrize(
    ("kind", "media", "problem"),
    [
        ("image", Sound(np.zeros(1)), "neither text nor image"),
        ("text", Sound(np.zeros(1)), "neither text nor image"),
        ("two words", Sound(np.zeros(1)), "must be a word"),
        ("audio", b"no medium", "must say its digest"),
    ],
)
def test_an_invalid_media_part_is_refused(kind: str, media: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        MediaPart(kind, media)


def test_a_vision_model_takes_an_image_file_as_a_medium() -> None:
    image = picture(30, 20)
    with vlmkit.load("mock") as model:
        shown = model.generate("what?", images=[image]).choices[0].text
        assert model.generate("what?", media=[png(image)]).choices[0].text == shown
        messages = [Message("user", (FilePart(png(image)), TextPart("what?")))]
        assert model.generate(messages).choices[0].text == shown
        with pytest.raises(RequestError, match="17 media are over"):
            model.generate("what?", media=[png(image)] * 17)


def test_loaders_are_chosen_by_name() -> None:
    with vlmkit.load("mock", media_loaders={"use": []}) as model:
        with pytest.raises(MediaError) as caught:
            model.generate("what?", media=[png(picture())])
        assert str(caught.value).endswith("which no media loader recognises (here: none)")
        assert "64x48" in model.generate("what?", images=[picture()]).choices[0].text


class CrashingLoader(WavLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[MediaPart]:
        raise ValueError(f"cannot read {data[-9:]!r}")


def test_messages_of_a_media_loader_are_logged_and_not_sent_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {"tokenizer": HearingTokenizer(), "engine": HearingEngine()}
    runner = vlmkit.Pipeline(
        **parts, media_encoder=HearingEncoder(), media_loaders={"wav": CrashingLoader()}
    )
    with vlmkit.Model(runner) as model, pytest.raises(MediaError) as caught:
        model.generate("?", media=[wav(0.5)])
    assert str(caught.value) == "media loader 'wav' failed on a file"
    assert "cannot read" in caplog.text


class DeafEncoder(HearingEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        raise ValueError("no ears")


def test_a_failing_encoder_is_reported_with_its_modality() -> None:
    runner = vlmkit.Pipeline(
        tokenizer=HearingTokenizer(), engine=HearingEngine(), media_encoder=DeafEncoder()
    )
    with (
        vlmkit.Model(runner) as model,
        pytest.raises(EngineError, match="the media encoder failed on this audio"),
    ):
        model.generate("?", media=[sound(0.5)])


class TakesAnySound(HearingTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        slots = [dataclasses.replace(slot, digest=bytes(32)) for slot in made.media]
        return dataclasses.replace(made, media=tuple(slots))


def test_sounds_with_equal_digests_would_be_confused() -> None:
    runner = vlmkit.Pipeline(
        tokenizer=TakesAnySound(), engine=HearingEngine(), media_encoder=HearingEncoder()
    )
    with vlmkit.Model(runner) as model:
        found = [model.generate("How loud is it?", media=[sound(v)]) for v in (0.9, 0.2)]
        assert [done.choices[0].text for done in found] == ["loud", "loud"]
