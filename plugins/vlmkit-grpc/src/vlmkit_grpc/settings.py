"""Settings: of the processes in ``[worker]`` and ``[encoder]``, and of those who connect to them.

The runner ``grpc`` has ``[runner]``, and the media encoder ``remote`` has ``[media_encoder]``.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import MOST, Count, Seconds, Secret
from vlmkit.settings.paths import InputFile

PORT = 50051
DEFAULT_LISTEN = f"127.0.0.1:{PORT}"
ENCODER_PORT = 50052
DEFAULT_ENCODER_LISTEN = f"127.0.0.1:{ENCODER_PORT}"

MIN_PIXELS = 128 * 128
"""From there on, the way costs a few percent of encoding at most (benchmarks/remote_encoder.py)."""

Address = Annotated[str, Meta(min_length=1, max_length=1024)]
KeepaliveSeconds = Annotated[float, Meta(ge=1.0, le=3600.0)]
MessageBytes = Annotated[int, Meta(ge=2**20, le=4 * 2**30)]


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a process of this distribution listens, and to whom it answers.

    Attributes:
        listen: the address of the port, as ``HOST:PORT``, or ``unix:PATH`` for a socket file.
        secret: the secret that gateways must send.
        secret_file: a file that contains it and nothing else.
        allow_public_without_secret: listen to other machines although neither a secret nor the
            certificate of a gateway is required.
        tls_certificate: file of the certificate and its chain, in PEM; the process then speaks TLS.
        tls_private_key: file of its key, if that is not in the same file.
        tls_client_ca: file of the authority whose certificates gateways must have.
        max_streams: the most calls of all gateways at once; a gateway has a session, and a call for
            each large request.
        max_message_bytes: the most bytes of a request, with its images.
        stall_timeout_s: time for a gateway to read what was sent, and to finish a message that it
            began; then its call ends.
        keepalive_s: time between signs of life on an idle connection.
        drain_timeout_s: time for running requests to end before the process does.
    """

    listen: Address = DEFAULT_LISTEN
    secret: Secret | None = None
    secret_file: InputFile = ""
    allow_public_without_secret: bool = False
    tls_certificate: InputFile = ""
    tls_private_key: InputFile = ""
    tls_client_ca: InputFile = ""
    max_streams: Annotated[int, Meta(ge=1, le=65_536)] = 256
    max_message_bytes: MessageBytes = 512 * 2**20
    stall_timeout_s: Seconds = 60.0
    keepalive_s: KeepaliveSeconds = 30.0
    drain_timeout_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 30.0


class WorkerSettings(ListenSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[worker]``.

    Attributes:
        max_open_requests: the most open requests and calls of one session.
        decision_timeout_s: time for a gateway's decision about the demand of a request.
        cache_events: let gateways watch the prefix cache; its changes hold tokens of all clients.
        num_renderers: processes that open files, decode images and prepare prompts; 0 uses threads.
            By default 2 if other machines can reach the worker, and otherwise 0.
        renderer_memory_bytes: memory that one of them may take beyond its idle size.
        constraint_workers: test each constraint in a separate process before it is compiled.
        vllm_services: also answer vllm-router, by two services of vLLM. Its requests belong to one
            tenant.
    """

    max_open_requests: Annotated[int, Meta(ge=1, le=65_536)] = 1024
    decision_timeout_s: Seconds = 30.0
    cache_events: bool = False
    num_renderers: Annotated[int, Meta(ge=0, le=256)] | None = None
    renderer_memory_bytes: Annotated[int, Meta(ge=256 * 2**20, le=MOST)] = 3 * 2**30
    constraint_workers: bool = True
    vllm_services: bool = False


class EncoderSettings(ListenSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[encoder]``.

    Attributes:
        max_streams: the most calls of all workers at once; each encodes one image.
        max_message_bytes: the most bytes of the inputs of an image.
        cache_bytes: memory for the features of earlier images.
    """

    listen: Address = DEFAULT_ENCODER_LISTEN
    max_streams: Annotated[int, Meta(ge=1, le=65_536)] = 64
    max_message_bytes: MessageBytes = 256 * 2**20
    cache_bytes: Count = 256 * 2**20


class ConnectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to connect to a process of this distribution.

    Attributes:
        secret: the secret that it expects.
        secret_file: a file that contains it and nothing else.
        tls: whether the connection is encrypted; implied by the files below.
        tls_ca: file of the authority that signed its certificate; by default those that gRPC
            brings.
        tls_certificate: file of a certificate that it asks for, in PEM.
        tls_private_key: file of its key, if that is not in the same file.
        start_timeout_s: time for it to be there when the model is loaded.
        connect_timeout_s: time for each later attempt to connect.
        keepalive_s: time between signs of life on an idle connection.
        max_message_bytes: the most bytes of a request, with its images.
    """

    secret: Secret | None = None
    secret_file: InputFile = ""
    tls: bool = False
    tls_ca: InputFile = ""
    tls_certificate: InputFile = ""
    tls_private_key: InputFile = ""
    start_timeout_s: Seconds = 60.0
    connect_timeout_s: Seconds = 10.0
    keepalive_s: KeepaliveSeconds = 30.0
    max_message_bytes: MessageBytes = 512 * 2**20

    @property
    def encrypts(self) -> bool:
        """Whether the connection is encrypted."""
        return self.tls or bool(self.tls_ca or self.tls_certificate)


class GrpcSettings(ConnectSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[runner]``, or ``runner`` of one of several models.

    Attributes:
        model_digest: the digest of the model that the worker must run, as ``vlmkit worker`` prints
            it; by default that of the first connection.
        give_up_s: time without a worker after which the model fails for good; by default the runner
            waits for any time.
        silence_timeout_s: time without any message of the worker after which the connection ends.
    """

    model_digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    give_up_s: Annotated[float, Meta(ge=0.0, le=MOST)] | None = None
    silence_timeout_s: Annotated[float, Meta(ge=2.0, le=86_400.0)] = 30.0


class RemoteEncoderSettings(ConnectSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[media_encoder]`` with ``use = "remote"``.

    Attributes:
        addresses: where encoders of the model are: ``HOST:PORT``, or ``unix:PATH``.
        local: the provider of the encoder in this process, which takes small images, and all while
            no other encoder can; ``auto`` as without remote encoders, and ``none`` for none.
        local_settings: the settings of that provider.
        min_pixels: images with fewer pixels, after the resizing by the model's processor, are
            encoded in this process.
        max_concurrency: the most images that are at one address at once.
        timeout_s: time for an image, with its way there and back.
        max_message_bytes: the most bytes of the inputs of an image, and of its features.
    """

    addresses: Annotated[tuple[Address, ...], Meta(max_length=64)] = ()
    local: Annotated[str, Meta(min_length=1, max_length=256)] = "auto"
    local_settings: dict[str, Any] = {}
    min_pixels: Count = MIN_PIXELS
    max_concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    timeout_s: Seconds = 30.0
    max_message_bytes: MessageBytes = 256 * 2**20
