"""What an operator can set about the server."""

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import MOST, Count, Positive, Seconds
from vlmkit.settings.paths import DataPath, InputFile, OutputFile
from vlmkit_server.settings.fleet import FleetSettings
from vlmkit_server.settings.limits import LimitsSettings

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

ApiKey = Annotated[
    str,
    Meta(
        min_length=16,
        max_length=512,
        pattern=r"^[!-~]+\Z",
        description="16 to 512 letters, digits and signs of ASCII, without spaces",
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
    """How many responses of the Responses API are kept for later, in this process.

    Attributes:
        max_stored: responses; of whoever keeps most, those that were used least recently are
            forgotten. 0 keeps none.
        max_stored_bytes: of all of them, the turns that they follow and their images included.
    """

    max_stored: Count = 1024
    max_stored_bytes: Positive = 256 * 2**20


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many files that clients send to ``/v1/files`` are kept, in this process.

    Attributes:
        max_stored: files; of whoever keeps most, those that were used least recently are forgotten.
            0 keeps none.
        max_stored_bytes: of all of them.
    """

    max_stored: Count = 256
    max_stored_bytes: Positive = 256 * 2**20


class DataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What outlives the process: files that clients send, batches, and what comes of them.

    Attributes:
        folder: where it is kept, on this machine; made, for nobody but its owner, if it is not
            there. When empty, files are kept in memory, and there are no batches.
        max_bytes: of all that is kept there.
        max_tenant_bytes: of what is kept there for one tenant.
        max_file_bytes: of one file that is sent.
        max_batch_lines: requests of one batch.
        max_batch_requests: requests of all batches that are answered at once; others go before.
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
        host: address to listen on. One that other machines can reach needs
            ``keys_file``, ``api_key``, ``api_key_file`` or ``allow_public_without_key``.
        port: port to listen on; 0 takes a free one.
        health_port: port that tells liveness and readiness alone, without keys and without
            encryption, whatever the server is doing: ``/healthz`` and ``/readyz``; 0 takes a free
            one, null opens none.
        health_host: address of that port; ``host`` when empty.
        health_metrics: whether ``/metrics`` is answered at that port, too, to whoever reaches it.
        keys_file: API keys that are taken, as ``vlmkit keys`` writes them; every request but
            ``/healthz`` then needs one. None is asked for when empty.
        api_key: one API key for all clients, in place of ``keys_file``: at least 16 characters
            without spaces. Set it by ``VLMKIT_SERVER__API_KEY``: others can read a command line.
        api_key_file: a file that holds such a key and nothing else.
        allowed_hosts: names under which clients reach the server, besides its own, such as that of
            a proxy that hands on ``Host``. A server that other machines can reach answers to every
            name unless some are listed.
        allowed_origins: origins of web pages that may read answers, such as
            ``https://chat.example.com``; none unless listed.
        allow_public_without_key: listen to other machines although there is no API key.
        tls_certificate: file of the certificate, and of those that vouch for it, in PEM; the server
            then speaks HTTPS. HTTP when empty.
        tls_private_key: file of its key, if that is not in the same file.
        unknown_fields: what is done about keys of a body that nothing here uses and that would not
            change the answer: they are named in the answer's header, refused, or ignored.
        max_tokens_overflow: what is done about a ``max_tokens`` above what the prompt leaves of the
            context, or above ``pipeline.max_output_tokens``: ``clamp`` lowers it, and the answer's
            header ``x-vlmkit-max-tokens`` names the value; ``reject`` answers 400.
        chat_template_kwargs: variables of chat templates that clients may set, and to what: a name,
            a colon, and ``bool``, ``int`` or texts with ``|`` between them.
        allow_generate: answer ``/inference/v1/generate``, whose prompts are tokens as they are,
            control tokens included, to whoever reaches the server. Where keys are asked for, those
            with the scope ``tokens`` are answered in any case.
        max_connections: open connections, those that are being encrypted included. Of more, one of
            whoever has most is closed, idle ones first, or the new one is answered 503.
        max_requests: requests under way, images and queue included; more are answered 429. An
            eighth is left to clients that have less than their share.
        max_body_bytes: size of one request's body.
        max_pending_body_bytes: bodies of all requests that are being read and checked. Of more, one
            that is on its way from whoever sends most is answered 429, or the new one.
        max_logprob_bytes: memory of the log-probabilities that answers under way may come to, where
            they are told whole. What is over that by itself is refused, and what does not fit
            beside others' is answered 429.
        max_text_chars: characters of text in one request.
        max_request_pixels: pixels of all images of one request.
        max_tool_rounds: times that an answer may go on with what tools of the server returned.
        max_header_bytes: size of one request's headers, its path included.
        header_timeout_s: time for a request's headers to arrive, and for a connection to be
            encrypted.
        body_timeout_s: time for a request's body to arrive.
        request_timeout_s: time for a request from its headers to the end of its answer, waiting
            included; what is not done then ends with an error. A client asks for less in the header
            ``x-request-timeout``. When null, 600 where other machines can reach ``host``, else
            3600.
        keepalive_s: silence in a stream after which a comment is sent, to keep proxies patient.
        send_timeout_s: time that a reader may take nothing before its connection is cut.
        drain_timeout_s: time after SIGTERM until the process ends; running answers have all of it
            but the last second, or fifth, in which errors are sent to what is cut off.
        num_renderers: processes for each model that open files, decode images and make prompts of
            them and of long texts; 0 does that in threads of the server's. When null, 2 where other
            machines can reach ``host`` and the model's tokenizer can run there, else 0.
        renderer_memory_bytes: memory that one of these may take besides what it has when idle,
            where the system can bound it.
        constraint_workers: try each constraint in a process of its own, which is killed where it
            takes too much CPU time or memory, before the server compiles it. A model then has one
            more process, which holds its vocabulary.
        responses: what is kept of the Responses API.
        files: what is kept of the files that clients send by themselves, in memory.
        data: what outlives the process: files and batches.
        fleet: when models are loaded and unloaded.
        limits: how much may be asked for in a time.
        log_format: how the server's log is written to standard error: ``text``, or ``json``, an
            object a line.
        access_log: file that gets an object of JSON for each request: what was asked of which
            route, by which key, how it ended, its bytes, tokens and times. None is written when
            empty.
        audit_log: file that gets an object of JSON for all that is of consequence: start and end,
            keys that were read again, models that were loaded, requests that load, keep or delete
            something, and refusals for want of a key. None is written when empty.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    health_host: str = ""
    health_metrics: bool = False
    keys_file: InputFile = ""
    api_key: ApiKey | None = None
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
        """Whether other machines can reach the port of health, if there is one."""
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
        """Time for a request: the one that is set, or the default for this address."""
        default_s = PUBLIC_TIMEOUT_S if self.is_public else LOOPBACK_TIMEOUT_S
        return default_s if self.request_timeout_s is None else self.request_timeout_s

    @property
    def renderers(self) -> int:
        """Renderer processes for each model: as set, or the default for this address."""
        default = PUBLIC_RENDERERS if self.is_public else 0
        return default if self.num_renderers is None else self.num_renderers

    @property
    def takes_generate(self) -> bool:
        """Whether prompts that are tokens are taken, from some at least."""
        return self.allow_generate or bool(self.keys_file)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
