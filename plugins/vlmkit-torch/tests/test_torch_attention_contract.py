"""The backend of this plugin keeps the contract of attention, which detects broken backends."""

import contracts_page
import pytest
from broken_backends import DETECTED_BY
from random_attention import agree_on_random_steps

from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.interfaces.torch_attention import AttentionBackend
from vlmkit_torch.testing import TorchAttentionContract

pytestmark = pytest.mark.torch


class TestSdpa(TorchAttentionContract):
    def make(self) -> AttentionBackend:
        return SdpaAttention()


def test_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(SdpaAttention, 100, seed=0)


@pytest.mark.slow
def test_ten_thousand_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(SdpaAttention, 10_000, seed=1)


def contract_on(kind: type[SdpaAttention]) -> TorchAttentionContract:
    class On(TorchAttentionContract):
        def make(self) -> AttentionBackend:
            return kind()

    return On()


@pytest.mark.parametrize("kind", DETECTED_BY, ids=lambda kind: kind.__name__)
def test_the_contract_detects_a_broken_backend(kind: type[SdpaAttention]) -> None:
    test = getattr(contract_on(kind), f"test_{DETECTED_BY[kind]}")
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        test()


def test_the_page_of_contracts_lists_what_the_contracts_of_this_plugin_detect() -> None:
    page = contracts_page.PAGE.read_text(encoding="utf-8")
    assert contracts_page.renewed(page) == page, "renew it: python contracts_page.py"
    assert "| Sees later tokens | `test_chunks_are_causal` |" in page


def test_every_test_of_the_contract_detects_a_broken_backend() -> None:
    tests = {name for name in dir(TorchAttentionContract) if name.startswith("test_")}
    assert {f"test_{name}" for name in DETECTED_BY.values()} == tests
