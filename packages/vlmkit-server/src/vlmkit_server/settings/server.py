"""Settings of the server."""

import ipaddress
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import MOST, Count, Positive, Seconds, Secret
from vlmkit.settings.paths import DataPath, InputFile, OutputFile
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.limits import LimitsSettings

if TYPE_CHECKING:
    from vlmkit.config.renderer_plan import WorkerProcesses

PUBLIC_RENDERERS = 2
PUBLIC_TIMEOUT_S = 600.0
LOOPBACK_TIMEOUT_S = 3600.0

Origin = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9+.-]*://[^/*\sA-Z]+$",
        max_length=512,
        description="a scheme, '://' and a host in small letters, with a port if it has one, and "
        "nothing after these",
        examples=["https://app.example.com"],
    ),
]

HostName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9._-]+$|^[0-9a-f:]+$",
        max_length=253,
        description="a host name in small letters or an IP address, without scheme and port",
        examples=["models.example.com"],
    ),
]

TemplateVariable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_]\w{0,63}:(bool|int|[\w.-]+(\|[\w.-]+)*)$",
        max_length=512,
        description="a name, ':', and bool, int or the values it may have with '|' between them",
        examples=["enable_thinking:bool"],
    ),
]


class ResponsesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many responses of the Responses API the process keeps in memory.

    Attributes:
        max_stored: number of responses. Beyond that, the least recently used one of the client that
            keeps most is evicted. 0 keeps none.
        max_stored_bytes: size of all of them, the turns that they follow and their images included.
    """

    max_stored: Count = 1024
    max_stored_bytes: Positive = 256 * 2**20


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many files that clients upload to ``/v1/files`` the process keeps in memory.

    Attributes:
        max_stored: number of files. Beyond that, the least recently used one of the client that
            keeps most is evicted. 0 keeps none.
        max_stored_bytes: size of all of them.
    """

    max_stored: Count = 256
    max_stored_bytes: Positive = 256 * 2**20


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What outlives the process: uploaded files, batches, and the results of batches.

    Attributes:
        folder: the data folder, on this machine; created, for its owner alone, if it does not
            exist. When empty, files are kept in memory, and there are no batches.
        max_bytes: size of everything in the folder.
        max_tenant_bytes: size of everything that one tenant keeps there.
        max_file_bytes: size of one uploaded file.
        max_batch_lines: requests of one batch.
        max_batch_requests: batch requests that run at once; interactive requests come first.
    """

    folder: DataPath = ""
    max_bytes: Positive = 20 * 2**30
    max_tenant_bytes: Positive = 4 * 2**30
    max_file_bytes: Positive = 200 * 2**20
    max_batch_lines: Positive = 50_000
    max_batch_requests: Positive = 8


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server listens, and what it refuses.

    Attributes:
        host: address to listen on. An address that other machines can reach needs ``keys_file``,
            ``api_key``, ``api_key_file`` or ``allow_public_without_key``.
        port: port to listen on; 0 selects a free one.
        health_port: port for health probes alone: ``/healthz`` and ``/readyz``. It needs no keys,
            has no encryption, and answers whatever the server is doing. 0 selects a free port, null
            opens none.
        health_host: address of that port; ``host`` when empty.
        health_metrics: whether that port also serves ``/metrics``, to every client that reaches it.
        keys_file: file of valid API keys, as ``vlmkit keys`` writes it. Every request but
            ``/healthz`` then needs a key. None is required when empty.
        api_key: one API key for all clients, in place of ``keys_file``: at least 16 characters
            without spaces. Set it by ``VLMKIT_SERVER__API_KEY``: others can read a command line.
        api_key_file: a file that contains such a key and nothing else.
        allowed_hosts: names by which clients reach the server, besides its own, such as the name of
            a proxy that forwards ``Host``. A server that other machines can reach accepts every
            name unless some are listed.
        allowed_origins: origins of web pages that may read answers, such as
            ``https://chat.example.com``; none unless listed.
        allow_public_without_key: listen to other machines although there is no API key.
        tls_certificate: file of the certificate and its chain, in PEM; the server then speaks
            HTTPS. HTTP when empty.
        tls_private_key: file of its key, if that is not in the same file.
        unknown_fields: how unknown fields of a body are handled, if they would not change the
            answer: they are named in the answer's header, refused, or ignored.
        max_tokens_overflow: how a ``max_tokens`` is handled that exceeds the rest of the context,
            or ``pipeline.max_output_tokens``. ``clamp`` lowers it, and the answer's header
            ``x-vlmkit-max-tokens`` has the value; ``reject`` returns 400.
        chat_template_kwargs: variables of chat templates that clients may set, and their values: a
            name, a colon, and ``bool``, ``int`` or texts with ``|`` between them.
        allow_generate: serve ``/inference/v1/generate`` to every client that reaches the server.
            Its prompts are raw tokens, control tokens included. Where keys are required, keys with
            the scope ``tokens`` may use it in any case.
        max_connections: open connections, TLS handshakes included. Beyond that, a connection of the
            client with most is closed, idle ones first, or the new one gets a 503.
        max_requests: requests in progress, images and queue included; more get a 429. An eighth is
            left to clients below their share.
        max_body_bytes: size of one request's body.
        max_pending_body_bytes: bodies of all requests that are being read and checked. Beyond that,
            an incoming one of the client that sends most gets a 429, or the new one.
        max_logprob_bytes: memory for the log-probabilities of complete answers in progress, by
            their upper bound. A request over it is refused; one that does not fit beside others
            gets a 429.
        max_text_chars: characters of text in one request.
        max_request_pixels: pixels of all images of one request, pages of documents included.
        max_tool_rounds: times that an answer may continue with the results of the server's tools.
        max_header_bytes: size of one request's headers, its path included.
        header_timeout_s: time for a request's headers to arrive, and for a TLS handshake.
        body_timeout_s: time for a request's body to arrive.
        request_timeout_s: time for a request from its headers to the end of its answer, waiting
            included; then it ends with an error. A client requests less in the header
            ``x-request-timeout``. When null, 600 where other machines can reach ``host``, else
            3600.
        keepalive_s: time without events in a stream after which a comment is sent, so that proxies
            keep it open.
        send_timeout_s: time that a client may read nothing before its connection is closed.
        drain_timeout_s: time after SIGTERM until the process ends. Running answers have all of it
            but the last second, or fifth, in which cancelled requests send their errors.
        num_renderers: processes for each model that open files, decode images and prepare prompts
            of them and of long texts; 0 uses threads of the server. When null, 2 where other
            machines can reach ``host`` and the model's tokenizer can run there, else 0.
        renderer_memory_bytes: memory that one of these processes may take beyond its idle size,
            where the system can limit it.
        constraint_workers: test each constraint in a separate process, before the server compiles
            it. The process is killed if it takes too much CPU time or memory. A model then has one
            more process, which holds its vocabulary.
        responses: what is kept of the Responses API.
        files: what is kept of uploaded files, in memory.
        data: what outlives the process: files and batches.
        fleet: when models are loaded and unloaded.
        limits: rate limits.
        log_format: format of the server's log on standard error: ``text``, or ``json``, an object a
            line.
        access_log: file that gets a JSON object for each request: its route, key, outcome, bytes,
            tokens and times. None is written when empty.
        audit_log: file that gets a JSON object for each security-relevant action. These are start
            and end, reloads of keys, loaded models, refusals for lack of a key, and requests that
            load, store or delete something. None is written when empty.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    health_host: str = ""
    health_metrics: bool = False
    keys_file: InputFile = ""
    api_key: Secret | None = None
    api_key_file: InputFile = ""
    allowed_hosts: tuple[HostName, ...] = ()
    allowed_origins: tuple[Origin, ...] = ()
    allow_public_without_key: bool = False
    tls_certificate: InputFile = ""
    tls_private_key: InputFile = ""
    unknown_fields: Literal["report", "refuse", "ignore"] = "report"
    max_tokens_overflow: Literal["clamp", "reject"] = "clamp"
    chat_template_kwargs: tuple[TemplateVariable, ...] = ("enable_thinking:bool", "thinking:bool")
    allow_generate: bool = False
    max_connections: Positive = 2048
    max_requests: Positive = 1024
    max_body_bytes: Positive = 64 * 2**20
    max_pending_body_bytes: Positive = 2**30
    max_logprob_bytes: Positive = 2**30
    max_text_chars: Positive = 2_000_000
    max_request_pixels: Positive = 200_000_000
    max_tool_rounds: Positive = 8
    max_header_bytes: Positive = 64 * 2**10
    header_timeout_s: Seconds = 20.0
    body_timeout_s: Seconds = 60.0
    request_timeout_s: Seconds | None = None
    keepalive_s: Seconds = 15.0
    send_timeout_s: Seconds = 60.0
    drain_timeout_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 30.0
    num_renderers: Annotated[int, Meta(ge=0, le=256)] | None = None
    renderer_memory_bytes: Annotated[int, Meta(ge=256 * 2**20, le=MOST)] = 3 * 2**30
    constraint_workers: bool = True
    responses: ResponsesSettings = ResponsesSettings()
    files: FilesSettings = FilesSettings()
    data: DataSettings = DataSettings()
    fleet: FleetSettings = FleetSettings()
    limits: LimitsSettings = LimitsSettings()
    log_format: Literal["text", "json"] = "text"
    access_log: OutputFile = ""
    audit_log: OutputFile = ""

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach the server."""
        return not is_loopback(self.host)

    @property
    def is_health_public(self) -> bool:
        """Whether other machines can reach the port of health probes."""
        return not is_loopback(self.health_host or self.host)

    @property
    def asks_for_keys(self) -> bool:
        """Whether clients need an API key."""
        return bool(self.keys_file or self.api_key or self.api_key_file)

    @property
    def clamps_max_tokens(self) -> bool:
        """Whether a ``max_tokens`` that does not fit is lowered."""
        return self.max_tokens_overflow == "clamp"

    @property
    def timeout_s(self) -> float:
        """Time for a request: as set, or the default for this address."""
        default_s = PUBLIC_TIMEOUT_S if self.is_public else LOOPBACK_TIMEOUT_S
        return default_s if self.request_timeout_s is None else self.request_timeout_s

    @property
    def renderers(self) -> int:
        """Renderer processes for each model: as set, or the default for this address."""
        default = PUBLIC_RENDERERS if self.is_public else 0
        return default if self.num_renderers is None else self.num_renderers

    @property
    def worker_processes(self) -> "WorkerProcesses":
        """The worker processes of each model."""
        from vlmkit.config.renderer_plan import WorkerProcesses

        return WorkerProcesses(
            num_renderers=self.renderers,
            needs_renderers=self.num_renderers is not None,
            renderer_memory_bytes=self.renderer_memory_bytes,
            compiles_constraints=self.constraint_workers,
        )

    @property
    def takes_generate(self) -> bool:
        """Whether some clients may send prompts of raw tokens."""
        return self.allow_generate or bool(self.keys_file)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
