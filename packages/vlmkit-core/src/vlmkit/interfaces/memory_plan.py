"""How much memory a component would take, found without its weights: values for ``vlmkit plan``.

A provider computes them with the functions that size the component at load, so that plan and
component cannot differ. Nothing here measures or allocates memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import MediaSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoad:
    """The requests for which memory is planned.

    Attributes:
        context_tokens: tokens of each sequence, prompt and answer together; None is the longest
            that the engine takes.
        num_sequences: sequences that are in the cache at once.
        max_step_tokens: tokens that the scheduler computes in one step.
        max_encoded_tokens: tokens of images that are encoded at once, but one image at least.
        slots: the images of one request, as the tokenizer prepares them; empty without images, and
            where the files of the tokenizer are not on this disk.
    """

    context_tokens: int | None = None
    num_sequences: int = 1
    max_step_tokens: int = 1024
    max_encoded_tokens: int = 4096
    slots: tuple[MediaSlot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """One purpose for which a component takes memory.

    Attributes:
        name: the purpose, such as ``weights``.
        num_bytes: bytes for the planned load.
        detail: what determines it, such as ``bfloat16, 8,030,261,248 parameters``.
        token_bytes: the part of it for each token of all sequences.
        sequence_bytes: the part of it for each sequence, whatever its length.
    """

    name: str
    num_bytes: int
    detail: str = ""
    token_bytes: int = 0
    sequence_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of one component.

    Attributes:
        needs: its purposes.
        device: where it takes the memory, such as ``cpu`` or ``cuda:0``.
        precision: the precision of its weights; empty if unknown.
        limits: of an engine with the present settings; None of other components, and where they
            are unknown before the weights are on this disk.
        modules: Python modules that it imports; libraries take memory, too.
        warm_up: a function of a module that calls the kernels of the component once, with small
            inputs. ``vlmkit plan`` calls it in a new process, whose memory it measures.
        is_shared: whether its weights are those of the engine.
    """

    needs: tuple[MemoryNeed, ...]
    device: str = "cpu"
    precision: str = ""
    limits: EngineLimits | None = None
    modules: tuple[str, ...] = ()
    warm_up: Callable[[], object] | None = None
    is_shared: bool = False
