"""What a renderer does: one request after the other, until whoever asks is gone.

Runs in the process of its own. How it came to its tokenizer is not its business.
"""

import contextlib
import logging
import os
import queue
import sys
import threading
from typing import BinaryIO

import msgspec

from vlmkit.errors import OutOfMemory
from vlmkit.kit.traces import trace_of
from vlmkit.running.prompting.prompt_builder import LocalPromptBuilder
from vlmkit.running.prompting.renderers.messages import (
    CANCEL,
    Answer,
    Frame,
    Ready,
    Refusal,
    Reply,
    read_frame,
    refusal_of,
    reply_of,
    request_of,
    write_frame,
)
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.running.scheduling.decode_memory import DecodeLease, DecodeMemoryLimiter

log = logging.getLogger(__name__)


def serve(
    prompts: LocalPromptBuilder,
    room: DecodeMemoryLimiter,
    sheet: SharedArena,
    asked: BinaryIO,
    answers: BinaryIO,
) -> None:
    """Answer requests; never returns: the process ends with whoever asks, whatever it does then.

    Args:
        prompts: makes them.
        room: bounds pictures that stand in files.
        sheet: where arrays go.
        asked: where requests come from.
        answers: where answers go.
    """
    frames: queue.SimpleQueue[tuple[Frame, DecodeLease]] = queue.SimpleQueue()

    def listen() -> None:
        place = room.ask("", 0)
        with contextlib.suppress(EOFError, OSError):
            while True:
                frame = read_frame(asked)
                if frame.head == CANCEL.head:
                    place.cancellation.cancel()
                    continue
                place = room.ask("", 0)
                frames.put((frame, place))
        os._exit(0)

    threading.Thread(target=listen, name="vlmkit-asked", daemon=True).start()
    say(answers, Ready())
    while True:
        say(answers, _answer(*frames.get(), prompts, sheet))


def say(answers: BinaryIO, answer: Answer) -> None:
    """Send an answer."""
    try:
        write_frame(answers, Frame(msgspec.msgpack.encode(answer)))
    except OSError:  # nobody listens any more
        os._exit(0)


def bound_memory(num_bytes: int) -> None:
    """Let this process have so much more than it has, where the system can bound it."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            held = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = held + num_bytes
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))


def _answer(
    frame: Frame, place: DecodeLease, prompts: LocalPromptBuilder, sheet: SharedArena
) -> Reply | Refusal:
    try:
        return reply_of(prompts.made(request_of(frame), place), sheet)
    except MemoryError:
        return refusal_of(OutOfMemory("this prompt"))
    except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
        refusal = refusal_of(error)
        if not refusal.kind:
            log.error("a prompt could not be made:\n%s", trace_of(error))  # noqa: TRY400
        return refusal
    finally:
        place.leave()
