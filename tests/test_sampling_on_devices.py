"""The sampler runs a bounded number of device operations and never waits for the device.

One simulated device computes on the CPU and counts operations (``tests/pretend``). The other is
torch's fake device, which has no values to read.
"""

from collections.abc import Callable, Sequence as Seq
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pretend.fake_cuda import fake_cuda  # noqa: E402 - needs torch
from pretend.torch_cuda import CUDA, pretended_cuda  # noqa: E402
from vlmkit.interfaces.sampler import Row  # noqa: E402
from vlmkit.running.sampling.sampled_tokens import readable, start_samples  # noqa: E402
from vlmkit.running.sampling.sampler import ArraySampler  # noqa: E402
from vlmkit.types.sampling import SamplingParams  # noqa: E402
from vlmkit_testing import new_sequence  # noqa: E402

pytestmark = pytest.mark.torch

VOCAB = 5000
GREEDY = SamplingParams()
FILTERED = SamplingParams(temperature=0.7, top_p=0.9, top_k=40)
NUCLEUS = SamplingParams(temperature=0.7, top_p=0.9)
DRAWN = SamplingParams(temperature=1.0)
EVERYTHING = SamplingParams(
    temperature=0.9,
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.1,
    logit_bias={5: 1.0},
    min_tokens=4,
)
WITH_LOGPROBS = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, logprobs=True, top_logprobs=5)
MIXED = (GREEDY, FILTERED, NUCLEUS, DRAWN, EVERYTHING, WITH_LOGPROBS)
KINDS = {
    "greedy": (GREEDY,),
    "top-p and top-k": (FILTERED,),
    "top-p": (NUCLEUS,),
    "no filter": (DRAWN,),
    "everything": (EVERYTHING,),
    "mixed": MIXED,
}


def make_rows(params: Seq[SamplingParams], num: int) -> list[Row]:
    return [
        Row(
            new_sequence(
                (1, 2, 3),
                params=params[place % len(params)],
                seed=place,
                output_ids=[7, 7, 9],
                eos_ids=frozenset({2}),
                banned_ids=(11, 12),
            )
        )
        for place in range(num)
    ]


def make_logits(num: int) -> Any:
    values = np.random.default_rng(3).normal(size=(num, VOCAB)) * 3
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_takes_at_most_forty_operations_for_any_batch_size(kind: str) -> None:
    spent = []
    for num in (1, 6, 64):
        rows, logits = make_rows(KINDS[kind], num), make_logits(num)
        sampler = ArraySampler()
        expected = sampler.prepare(rows)(logits.numpy()).tolist()
        with pretended_cuda() as device:
            logits = logits.to(CUDA)
            sampler.prepare(rows)(logits)
            device.reset()
            picked = sampler.prepare(rows)(logits)
            spent.append(sum(device.kernels.values()))
            assert device.num_reads == 0
            assert picked.device == CUDA
            assert picked.tolist() == expected
    assert max(spent) <= 40
    assert spent[1] == spent[2], "as many for 6 rows as for 64"


@pytest.mark.parametrize("num_told", [0, 1, 8])
def test_a_step_is_read_from_the_device_once(num_told: int) -> None:
    rows = make_rows([WITH_LOGPROBS], num_told) + make_rows([GREEDY], 8 - num_told)
    logits = make_logits(8)
    params = [row.sequence.params for row in rows]
    given = {0: 3}
    token_ids = ArraySampler().prepare(rows)(logits.numpy())
    expected = start_samples(logits.numpy(), token_ids, params, given)()
    with pretended_cuda() as device:
        logits = logits.to(CUDA)
        device.reset()
        found = start_samples(
            readable(logits), ArraySampler().prepare(rows)(logits), params, given
        )()
        assert device.num_reads == 1
    for one, other in zip(found, expected, strict=True):
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert [top.token_id for top in one.top] == [top.token_id for top in other.top]
        assert (one.logprob is None) == (other.logprob is None)
        assert [one.logprob or 0.0, *(top.logprob for top in one.top)] == pytest.approx(
            [other.logprob or 0.0, *(top.logprob for top in other.top)], abs=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_reads_no_number_from_the_device(kind: str) -> None:
    rows = make_rows(KINDS[kind], 6)
    with fake_cuda():
        logits = torch.empty(6, VOCAB, device=CUDA)
        picked = ArraySampler().prepare(rows)(logits)
        assert (picked.shape, picked.dtype, picked.device) == ((6,), torch.int64, CUDA)


@pytest.mark.parametrize(
    "look",
    [
        lambda logits: logits.argmax().item(),
        lambda logits: bool(logits.max() > 0),
        lambda logits: logits.argmax(-1).tolist(),
    ],
)
def test_reading_a_number_of_the_fake_device_raises_an_error(look: Callable[[Any], Any]) -> None:
    with fake_cuda(), pytest.raises(Exception, match="_local_scalar_dense"):
        look(torch.empty(6, VOCAB, device=CUDA))
