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

from vlmkit.errors import OutOfMemory, VlmkitError, WireError
from vlmkit.kit.traces import trace_of
from vlmkit.running.prompting.prompt_builder import LocalPromptBuilder
from vlmkit.running.prompting.renderers.messages import (
    CODEC,
    Cancel,
    Ready,
    reply_of,
    send_answer,
    sent_error,
)
from vlmkit.running.prompting.renderers.shared_arena import SharedArena
from vlmkit.running.scheduling.decode_memory import DecodeLease, DecodeMemoryLimiter
from vlmkit.types.request import Request
from vlmkit.wire.frames import Frame, read_frame, write_frame

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
    waiting: queue.SimpleQueue[tuple[Request, DecodeLease]] = queue.SimpleQueue()

    def listen() -> None:
        lease = limiter.lease("", 0)
        with contextlib.suppress(EOFError, OSError, WireError, MemoryError):
            while True:
                message = CODEC.decode(read_frame(requests))
                if isinstance(message, Cancel):
                    lease.cancellation.cancel()
                    continue
                lease = limiter.lease("", 0)
                waiting.put((message, lease))
        os._exit(0)

    threading.Thread(target=listen, name="vlmkit-requests", daemon=True).start()
    try:
        write_frame(answers, CODEC.encode(Ready()))
        while True:
            send_answer(answers, _answer(*waiting.get(), prompts), arena)
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


def _answer(request: Request, lease: DecodeLease, prompts: LocalPromptBuilder) -> Frame:
    try:
        return CODEC.encode(reply_of(prompts.build(request, lease)))
    except MemoryError:
        return CODEC.encode(OutOfMemory("this prompt"))
    except Exception as error:  # noqa: BLE001 - a tokenizer may raise anything
        if not isinstance(error, VlmkitError):
            log.error("a prompt could not be made:\n%s", trace_of(error))  # noqa: TRY400
        return CODEC.encode(sent_error(error))
    finally:
        lease.release()
