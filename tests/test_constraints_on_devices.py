"""Grammar masks on a device take one copy to it, no read from it, and few operations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pretend.fake_cuda import fake_cuda  # noqa: E402 - needs torch
from pretend.torch_cuda import CUDA, pretended_cuda  # noqa: E402
from vlmkit.interfaces.constraint import Vocabulary  # noqa: E402
from vlmkit.interfaces.sampler import Row  # noqa: E402
from vlmkit.interfaces.step import WorkItem  # noqa: E402
from vlmkit.running.constraints.grammar_state import GrammarState  # noqa: E402
from vlmkit.running.sampling.grammar_bitmask import GrammarBitmask  # noqa: E402
from vlmkit.running.sampling.sampler import ArraySampler  # noqa: E402
from vlmkit.running.sampling.token_sets import words_of  # noqa: E402
from vlmkit.types.constraint import OneOf, Regex  # noqa: E402
from vlmkit_guidance.compiler import GuidanceCompiler  # noqa: E402
from vlmkit_testing import new_sequence  # noqa: E402

pytestmark = pytest.mark.torch

VOCAB, END = 300, 299
TOKENS = [bytes([i]) if i < 256 else b"" for i in range(VOCAB)]
COMPILER = GuidanceCompiler(Vocabulary(TOKENS, lambda text: list(text.encode())))
CONSTRAINTS = (Regex("[a-z]{2,4}"), OneOf(("yes", "yet", "no")))


def make_items(num, num_free=0):
    """Return items that keep to constraints, every second with drafts, and free ones between."""
    items = []
    for place in range(num):
        make = COMPILER.compile(CONSTRAINTS[place % 2])
        free, ends = words_of(range(256), VOCAB), words_of([END], VOCAB)
        guide = GrammarState(make, free, ends) if place >= num_free else None
        sequence = new_sequence((1, 2), guide=guide, eos_ids=frozenset({END}))
        drafts = (ord("y"), ord("e")) if place % 2 else ()
        items.append(WorkItem(sequence, 1, 1 + len(drafts), 1 + len(drafts), drafts))
    return items


def make_logits(items):
    num_rows = sum(item.num_rows for item in items)
    values = np.random.default_rng(5).normal(size=(num_rows, VOCAB)) * 3
    return values.astype(np.float32)


@pytest.mark.parametrize("num_free", [0, 2])
def test_grammar_masks_take_one_copy_and_no_read_for_any_batch_size(num_free):
    spent = []
    for num in (3, 6, 32):
        logits = make_logits(make_items(num))
        expected = GrammarBitmask(make_items(num, num_free)).apply(logits)
        with pretended_cuda() as device:
            sent = torch.from_numpy(logits).to(CUDA)
            masks = GrammarBitmask(make_items(num, num_free))
            device.reset()
            found = masks.apply(sent)
            assert (device.num_reads, device.num_copies) == (0, 1)
            spent.append(sum(device.kernels.values()))
            assert found.device == CUDA
            assert np.array_equal(found.cpu().numpy(), expected)
    assert spent[0] == spent[1] == spent[2] <= 20


def test_only_logits_of_forbidden_tokens_change():
    items = make_items(4, num_free=2)
    logits = make_logits(items)
    before = logits.copy()
    masked = GrammarBitmask(items).apply(logits)
    assert np.array_equal(logits, before), "the engine's own are left as they are"
    assert np.array_equal(masked[:4], logits[:4]), "one row of the first item, three of the second"
    allowed = [{chr(i) for i in np.flatnonzero(np.isfinite(row))} for row in masked[4:]]
    lowercase = {chr(i) for i in range(ord("a"), ord("z") + 1)}
    assert allowed == [lowercase, {"y", "n"}, {"e"}, {"s", "t"}]
    kept = np.isfinite(masked)
    assert np.array_equal(masked[kept], logits[kept])


def test_a_constrained_step_reads_no_number_from_the_device():
    items = make_items(6, num_free=2)
    rows = [Row(item.sequence, item.drafts[:n]) for item in items for n in range(item.num_rows)]
    with fake_cuda():
        logits = torch.empty(len(rows), VOCAB, device=CUDA)
        picked = ArraySampler().prepare(rows)(GrammarBitmask(items).apply(logits))
        assert (picked.shape, picked.device) == ((len(rows),), CUDA)


def test_reading_a_masked_logit_of_the_fake_device_raises_an_error():
    items = make_items(2)
    with fake_cuda(), pytest.raises(Exception, match="_local_scalar_dense"):
        GrammarBitmask(items).apply(torch.empty(4, VOCAB, device=CUDA)).max().item()
