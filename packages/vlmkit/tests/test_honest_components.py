"""Components that keep every promise in a way of their own pass their contracts as they are."""

from honest.sampler import Dry, Greedy, Mirostat, Plain

from vlmkit.testing import SamplerContract


class TestPlain(SamplerContract):
    make = Plain


class TestGreedy(SamplerContract):
    make = Greedy


class TestDry(SamplerContract):
    make = Dry


class TestMirostat(SamplerContract):
    make = Mirostat
