"""Frames on their way through gRPC: in messages of limited size."""

from collections.abc import Iterator

from vlmkit.running.remote_runner.unsent import Parts
from vlmkit_grpc.channel_options import PIECE_BYTES
from vlmkit_grpc.protocol.worker_pb2 import Part


def pieces_of(frame: Parts) -> Iterator[Part]:
    """Yield the parts of a frame as messages of gRPC, which copies them."""
    for view in (memoryview(part).cast("B") for part in frame):
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield Part(content=bytes(view[start : start + PIECE_BYTES]))
