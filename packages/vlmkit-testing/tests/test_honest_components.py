"""Correct components that differ from ours pass their contracts unchanged."""

from typing import ClassVar

import pytest
from broken.api import OnApi
from broken.media_loader import OnLoader
from broken.tokenizer_media import OnAudio, OnTextOnly
from broken.tool_source import OnTools
from honest.api import ToyApi
from honest.constraint import YEAR, UsualTokensCompiler, YearCompiler
from honest.media_encoder import CachingEncoder
from honest.media_loader import NoteLoader, SheetLoader
from honest.monitor import Tally
from honest.monitor_page import LagPage
from honest.observer import NewestFailures
from honest.sampler import Dry, Greedy, Mirostat, OneNumber, Plain
from honest.scheduler import HalfOfTheAnswers, ShortestPromptFirst
from honest.tokenizer import AudioTokenizer, TextTokenizer, WordTokenizer
from honest.tool_source import Counter, ToyTools

from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.constraint import OneOf, Regex
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing import (
    ConstraintContract,
    MediaEncoderContract,
    MediaLoaderContract,
    MonitorContract,
    ObserverContract,
    SamplerContract,
    SchedulerContract,
    ToolSourceContract,
    awkward_pictures,
    picture,
)


class TestPlain(SamplerContract):
    make = Plain


class TestGreedy(SamplerContract):
    make = Greedy


class TestDry(SamplerContract):
    make = Dry


class TestMirostat(SamplerContract):
    make = Mirostat


@pytest.mark.slow
class TestOneNumber(SamplerContract):
    make = OneNumber


class TestTextTokenizer(OnTextOnly):
    """The model supports no images, tools or options."""

    __init__ = object.__init__
    make = TextTokenizer


class TestAudioTokenizer(OnAudio):
    __init__ = object.__init__
    make = AudioTokenizer


@pytest.mark.slow
class TestWordTokenizer(OnTextOnly):
    """Turns are words that a user can type."""

    __init__ = object.__init__
    make = WordTokenizer
    marks_turns = False

    def special_texts(self):
        return ["<end>"]


class TestCachingEncoder(MediaEncoderContract):
    make = CachingEncoder

    def slots(self) -> list[MediaSlot]:
        small = ImagePart(picture(seed=2), ImageOptions(max_tokens=2))
        pictures = [picture(), small, picture(seed=1), *awkward_pictures()]
        return list(MockTokenizer().prompt([Message.of("user", "?", pictures)]).media)


class TestNoteLoader(MediaLoaderContract):
    make = NoteLoader

    def files(self) -> list[bytes]:
        return [NoteLoader.mark + text * 40 for text in (b"one\ntwo\n", "drei €\n".encode())]


class TestNewestFailures(ObserverContract):
    make = NewestFailures


class TestLagPage(MonitorContract):
    make = LagPage


class TestCounter(ToolSourceContract):
    make = Counter


class TestSheetLoader(OnLoader):
    __init__ = object.__init__
    make = SheetLoader


class TestToyApi(OnApi):
    __init__ = object.__init__
    make = ToyApi


class TestToyTools(OnTools):
    __init__ = object.__init__
    make = ToyTools


class TestTally(MonitorContract):
    make = Tally


class TestShortestPromptFirst(SchedulerContract):
    make = ShortestPromptFirst


@pytest.mark.slow
class TestHalfOfTheAnswers(SchedulerContract):
    make = HalfOfTheAnswers


class TestUsualTokens(ConstraintContract):
    """A forced text may allow only its usual tokens."""

    forms = (OneOf,)
    make = UsualTokensCompiler


class TestYearCompiler(ConstraintContract):
    forms = (Regex,)
    examples: ClassVar = {Regex: (YEAR, lambda said: len(said) == 4 and said.isdecimal())}

    def make(self, vocabulary):
        return YearCompiler(vocabulary)


class TestYearCompilerWithoutForms(TestYearCompiler):
    forms = None
