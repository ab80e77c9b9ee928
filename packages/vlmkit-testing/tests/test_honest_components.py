"""Correct components that differ from ours pass their contracts unchanged."""

from typing import ClassVar

from broken.api import OnApi
from broken.media_loader import OnLoader
from broken.tokenizer_media import OnAudio, OnTextOnly
from broken.tool_source import OnTools
from honest.api import ToyApi
from honest.constraint import YEAR, UsualTokensCompiler, YearCompiler
from honest.media_loader import SheetLoader
from honest.monitor import Tally
from honest.sampler import Dry, Greedy, Mirostat, Plain
from honest.scheduler import ShortestPromptFirst
from honest.tokenizer import AudioTokenizer, TextTokenizer
from honest.tool_source import ToyTools

from vlmkit.types.constraint import OneOf, Regex
from vlmkit_testing import ConstraintContract, MonitorContract, SamplerContract, SchedulerContract


class TestPlain(SamplerContract):
    make = Plain


class TestGreedy(SamplerContract):
    make = Greedy


class TestDry(SamplerContract):
    make = Dry


class TestMirostat(SamplerContract):
    make = Mirostat


class TestTextTokenizer(OnTextOnly):
    """The model supports no images, tools or options."""

    __init__ = object.__init__
    make = TextTokenizer


class TestAudioTokenizer(OnAudio):
    __init__ = object.__init__
    make = AudioTokenizer


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
