"""All errors that vlmkit raises deliberately.

VlmkitError
├── ConfigError            a setting is unknown, missing or out of range
├── PluginError            a plugin cannot be loaded, or violates the contract
│   ├── UnknownPlugin      no installed plugin provides the requested name
│   └── PluginUnavailable  installed, but it cannot run here or cannot serve this model
├── CheckpointError        a model's files are missing, broken or not supported
├── WireError              a message of another process is malformed, or of another version
├── RequestError           one request is invalid; the engine works
│   ├── PromptTooLong      the prompt and its answer do not fit the context
│   ├── MediaError         an image, sound or other file is refused
│   │   └── ImageError     an image is refused: its format, size, address or content
│   ├── ConstraintError    a constraint is invalid or cannot be enforced
│   ├── QueueFull          too many requests are waiting; try again later
│   └── RequestQuarantined the model crashed repeatedly while it answered this request
└── EngineError            a component failed while it ran this request
    ├── EngineFailed       the engine failed for good and answers no further request
    ├── WorkerLost         the process that ran this request ended or is not there; try again
    ├── OutOfMemory        too little memory for this request now; try again later
    ├── PromptNotMade      the process that built the prompt ended; try again
    └── RequestCancelled   the client disconnected, its deadline passed, or the runner closes

A message names the subject, shows the value with ``!r`` and says what was expected; ``hint`` says
what to do next. Messages never repeat what a client sent beyond the name of a field. They never
contain the text of another library's exception, which goes to the log.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class VlmkitError(Exception):
    """Base class of all errors that vlmkit raises deliberately.

    Args:
        message: what is wrong.
        hint: what to do about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class ConfigError(VlmkitError):
    """A setting is unknown, missing or out of range.

    Attributes:
        others: further errors that were found at the same time.
    """

    others: "tuple[ConfigError, ...]" = ()

    def __init__(
        self, message: str, *, hint: str = "", others: "tuple[ConfigError, ...]" = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.others = others
        for other in others:
            self.add_note(f"also: {other}")

    @classmethod
    def together(cls, errors: "Sequence[ConfigError]") -> "ConfigError":
        """Return the first error, with all others attached to it."""
        first, *others = (each for error in errors for each in error.each())
        return cls(str(first), hint=first.hint, others=tuple(others))

    def each(self) -> "tuple[ConfigError, ...]":
        """Return this error and the attached ones, each as a separate error."""
        return (ConfigError(str(self), hint=self.hint), *self.others) if self.others else (self,)


class PluginError(VlmkitError):
    """A plugin cannot be loaded, or violates the contract."""


class UnknownPlugin(PluginError):  # noqa: N818 - reads as a sentence where it is raised
    """No installed plugin provides the requested name."""


class PluginUnavailable(PluginError):  # noqa: N818
    """The plugin is installed, but it cannot run here or cannot serve this model."""


class CheckpointError(VlmkitError):
    """A model's files are missing, broken or not supported."""


class WireError(VlmkitError):
    """A message of another process is malformed, too large, or of another version.

    The connection is of no more use: close it.
    """


class RequestError(VlmkitError):
    """One request is invalid; the engine works.

    Args:
        message: what is wrong, safe to show to the client.
        param: the invalid field of the request, such as ``messages[0].content``.
        code: a short machine-readable reason, as in OpenAI's API.
        hint: what to do about it.

    Attributes:
        distribution: the distribution that supports such requests once it is installed; the hint
            names it, too.
    """

    code = "invalid_request"
    distribution: str = ""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code or type(self).code


class PromptTooLong(RequestError):  # noqa: N818
    """The prompt and its answer do not fit the context.

    The message begins with OpenAI's sentence: clients match it, and then shorten the conversation.

    Args:
        max_tokens: size of the context, prompt and answer together.
        problem: what was requested, as the end of a sentence.
        param: the field of the request that is too large.
    """

    code = "context_length_exceeded"

    def __init__(self, max_tokens: int, problem: str, *, param: str = "messages") -> None:
        super().__init__(
            f"This model's maximum context length is {max_tokens} tokens. However, {problem}",
            param=param,
            hint="shorten the conversation, use smaller images or ask for fewer tokens",
        )


class MediaError(RequestError):
    """A file or a medium is refused: its format, its size or its content.

    Attributes:
        index: its index among the images and files of the request, from 0; None if unknown.
    """

    code = "invalid_media"
    index: int | None = None


class ImageError(MediaError):
    """An image is refused: its format, its size, its address or its content."""

    code = "invalid_image"


class ConstraintError(RequestError):
    """A constraint is invalid, or the answer cannot continue within it.

    Args:
        message: what is wrong, safe to show to the client.
        hint: what to do about it.
        keyword: the keyword of a JSON schema that caused the error; empty if unknown.
    """

    code = "invalid_constraint"
    keyword = ""

    def __init__(self, message: str, *, hint: str = "", keyword: str = "") -> None:
        super().__init__(message, param="constraint", hint=hint)
        self.keyword = keyword


class QueueFull(RequestError):  # noqa: N818
    """Too many requests are waiting; try again later.

    Attributes:
        retry_after_s: seconds until a retry makes sense; None if unknown.
    """

    code = "queue_full"
    retry_after_s: int | None = None


class RequestQuarantined(RequestError):  # noqa: N818
    """The process of the model crashed repeatedly while it answered this request."""

    code = "request_quarantined"

    def __init__(self) -> None:
        super().__init__(
            "the model crashed repeatedly while it answered this request",
            hint="change the request; this one is refused for an hour",
        )


class EngineError(VlmkitError):
    """A component failed while it ran this request."""


class EngineFailed(EngineError):  # noqa: N818
    """The engine failed for good: this runner answers no further request."""

    code = "model_failed"


class WorkerLost(EngineError):  # noqa: N818
    """The process that ran this request ended or cannot be reached; another may answer later."""

    code = "model_failed"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="try again later")


class OutOfMemory(EngineError):  # noqa: N818
    """There was too little memory for this request; other requests may have caused that."""

    code = "out_of_memory"

    def __init__(self, subject: str) -> None:
        super().__init__(f"there is not enough memory for {subject}", hint="try again later")


class PromptNotMade(EngineError):  # noqa: N818
    """The separate process that built this request's prompt ended before it was done."""

    code = "prompt_not_made"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the prompt was not made: {reason}", hint="try again later")


class RequestCancelled(EngineError):  # noqa: N818
    """The request was cancelled, and its work stopped."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")
