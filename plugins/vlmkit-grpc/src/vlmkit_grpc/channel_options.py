"""Options of gRPC that both ends set, so that neither refuses the other."""

PIECE_BYTES = 2**18
"""The most bytes of a frame in one message of gRPC; longer frames travel in several."""
_MESSAGE_BYTES = PIECE_BYTES + 1024
_METADATA_BYTES = 16 * 1024
_MIN_PING_MS = 500

Options = list[tuple[str, int | str]]


def _common(
    keepalive_s: float, received_bytes: int = _MESSAGE_BYTES, sent_bytes: int = _MESSAGE_BYTES
) -> Options:
    """Return what both ends set: keepalive without limit, and the size of messages."""
    return [
        ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(min(keepalive_s, 20.0) * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", received_bytes),
        ("grpc.max_send_message_length", sent_bytes),
        ("grpc.max_metadata_size", _METADATA_BYTES),
    ]


def server_options(keepalive_s: float, max_streams: int, whole_bytes: int = 0) -> Options:
    """Return the options of a worker.

    Args:
        keepalive_s: time between signs of life on an idle connection.
        max_streams: the most calls at once.
        whole_bytes: bytes of the largest message that it takes in one piece; 0 if it exchanges
            pieces of frames alone. It bounds what it sends itself.
    """
    sizes = (max(whole_bytes, _MESSAGE_BYTES), -1) if whole_bytes else ()
    return [
        *_common(keepalive_s, *sizes),
        # A gateway may send signs of life as often as its settings allow.
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_MS),
        ("grpc.max_concurrent_streams", max_streams),
        ("grpc.so_reuseport", 0),  # a second worker on the port must fail
    ]


def client_options(keepalive_s: float) -> Options:
    """Return the options of a gateway."""
    return [
        *_common(keepalive_s),
        ("grpc.use_local_subchannel_pool", 1),  # each connection is new
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
