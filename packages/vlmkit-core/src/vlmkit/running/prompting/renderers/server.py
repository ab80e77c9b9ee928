"""The loop of a renderer process: answers one request after the other until the server is gone.

It runs in the renderer's process. The tokenizer is built elsewhere.
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
    limiter: DecodeMemoryLimiter,
    arena: SharedArena,
    requests: BinaryIO,
    answers: BinaryIO,
) -> None:
    """Answer requests; never returns. The process exits when the server ends, even at work.

    Args:
        prompts: builds prompts.
        limiter: bounds the decode memory of images in files.
        arena: the arena for arrays.
        requests: the pipe of requests.
        answers: the pipe of answers.
    """
    frames: queue.SimpleQueue[tuple[Frame, DecodeLease]] = queue.SimpleQueue()

    def listen() -> None:
        lease = limiter.lease("", 0)
        with contextlib.suppress(EOFError, OSError):
            while True:
                frame = read_frame(requests)
                if frame.head == CANCEL.head:
                    lease.cancellation.cancel()
                    continue
                lease = limiter.lease("", 0)
                frames.put((frame, lease))
        os._exit(0)

    threading.Thread(target=listen, name="vlmkit-requests", daemon=True).start()
    send_answer(answers, Ready())
    while True:
        send_answer(answers, _answer(*frames.get(), prompts, arena))


def send_answer(answers: BinaryIO, answer: Answer) -> None:
    """Send an answer."""
    try:
        write_frame(answers, Frame(msgspec.msgpack.encode(answer)))
    except OSError:  # the server is gone
        os._exit(0)


def bound_memory(num_bytes: int) -> None:
    """Limit this process to so many more bytes than it has, where the system supports that."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            held = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = held + num_bytes
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (bound, hard))


def _answer(
    frame: Frame, lease: DecodeLease, prompts: LocalPromptBuilder, arena: SharedArena
) -> Reply | Refusal:
    try:
        return reply_of(prompts.build(request_of(frame), lease), arena)
    except MemoryError:
        return refusal_of(OutOfMemory("this prompt"))
    except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
        refusal = refusal_of(error)
        if not refusal.kind:
            log.error("a prompt could not be made:\n%s", trace_of(error))  # noqa: TRY400
        return refusal
    finally:
        lease.release()
