"""The backend keeps the contract of vlmkit-torch, and is exact to the last bit."""

import torch

from vlmkit_torch.interfaces.torch_attention import AttentionBackend
from vlmkit_torch.testing import TorchAttentionContract
from vlmkit_torch.testing.attention_case import AttentionCase, Part, needs_of, plain_layer
from vlmkit_yourname.attention import ExactAttention


class TestExactAttention(TorchAttentionContract):
    atol = 1e-2  # of results in bfloat16

    def make(self) -> AttentionBackend:
        return ExactAttention()


def test_the_result_is_rounded_once() -> None:
    device, backend = torch.device("cpu"), ExactAttention()
    layer = plain_layer(torch.bfloat16, head_size=64)
    backend.prepare(needs_of([layer], device))
    case = AttentionCase(layer, [Part(30, 1), Part(0, 40)], device, num_decodes=1)

    assert torch.equal(case.run(backend), case.written_out().to(torch.bfloat16))
