"""Every error vlmkit raises on purpose.

VlmkitError
├── ConfigError            a setting is unknown, missing or out of range
├── PluginError            a plugin could not be loaded, or broke the contract
│   ├── UnknownPlugin      no installed plugin provides the requested name
│   └── PluginUnavailable  installed, but it cannot run here or cannot serve this model
├── CheckpointError        a model's files are missing, broken or not supported
├── RequestError           this one request is wrong; the engine is fine
│   ├── PromptTooLong      the prompt and its answer do not fit the context
│   ├── MediaError         an image, sound or other file is refused
│   │   └── ImageError     an image: its format, size, address or content
│   ├── ConstraintError    a constraint cannot be kept to, or makes no sense
│   └── QueueFull          too many requests are waiting; try again later
└── EngineError            a component failed while it ran this request
    ├── EngineFailed       the engine failed for good: nothing can be answered any more
    ├── OutOfMemory        there was not enough memory for it; later there may be
    ├── PromptNotMade      the process that made its prompt ended; another may not
    └── RequestCancelled   its client disconnected, its time is over, or the runner closes

A message names the subject, shows the value with ``!r`` and says what was expected; ``hint`` says
what to do next. Messages never repeat what a client sent beyond the name of a field, and never
carry the text of another library's exception: those go to the log.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class VlmkitError(Exception):
    """Base class: catch this to catch everything vlmkit raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class ConfigError(VlmkitError):
    """A setting is unknown, missing or out of range.

    Attributes:
        others: further mistakes that were found with it.
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
        """Return the first error, which has all others with it."""
        first, *others = (each for error in errors for each in error.each())
        return cls(str(first), hint=first.hint, others=tuple(others))

    def each(self) -> "tuple[ConfigError, ...]":
        """Return this mistake and the others, each by itself."""
        return (ConfigError(str(self), hint=self.hint), *self.others) if self.others else (self,)


class PluginError(VlmkitError):
    """A plugin could not be loaded, or broke the contract."""


class UnknownPlugin(PluginError):  # noqa: N818 - reads as a sentence where it is raised
    """No installed plugin provides the requested name."""


class PluginUnavailable(PluginError):  # noqa: N818
    """The plugin is installed, but it cannot run here or cannot serve this model."""


class CheckpointError(VlmkitError):
    """A model's files are missing, broken or not supported."""


class RequestError(VlmkitError):
    """This one request is wrong; the engine is fine.

    Args:
        message: what is wrong, safe to show to the client.
        param: the field of the request that is wrong, such as ``messages[0].content``.
        code: a short machine-readable reason, in OpenAI's manner.
        hint: what to do about it.

    Attributes:
        distribution: what would serve such requests once it is installed; the hint names it, too.
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

    Clients look for the first sentence, which is OpenAI's, and then shorten the conversation.

    Args:
        max_tokens: what the context holds, prompt and answer together.
        problem: what was asked for, as the end of a sentence.
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
        index: which of the images and files of a request it is, from 0; None where that is not
            known.
    """

    code = "invalid_media"
    index: int | None = None


class ImageError(MediaError):
    """An image is refused: its format, its size, its address or its content."""

    code = "invalid_image"


class ConstraintError(RequestError):
    """A constraint makes no sense, or the answer cannot go on within it.

    Args:
        message: what is wrong, safe to show to the client.
        hint: what to do about it.
        keyword: the keyword of a JSON schema that is at fault; empty where that is not known.
    """

    code = "invalid_constraint"
    keyword = ""

    def __init__(self, message: str, *, hint: str = "", keyword: str = "") -> None:
        super().__init__(message, param="constraint", hint=hint)
        self.keyword = keyword


class QueueFull(RequestError):  # noqa: N818
    """Too many requests are waiting; try again later.

    Attributes:
        retry_after_s: in how many seconds; None where that is not known.
    """

    code = "queue_full"
    retry_after_s: int | None = None


class EngineError(VlmkitError):
    """A component failed while it ran this request."""


class EngineFailed(EngineError):  # noqa: N818
    """The engine failed for good: nothing can be answered any more, by this runner at least."""

    code = "model_failed"


class OutOfMemory(EngineError):  # noqa: N818
    """There was not enough memory for this request, which need not be at fault for that."""

    code = "out_of_memory"

    def __init__(self, subject: str) -> None:
        super().__init__(f"there is not enough memory for {subject}", hint="try again later")


class PromptNotMade(EngineError):  # noqa: N818
    """A process of its own made this request's prompt, and ended before that was done."""

    code = "prompt_not_made"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the prompt was not made: {reason}", hint="try again later")


class RequestCancelled(EngineError):  # noqa: N818
    """The request was cancelled, and its work stopped: nothing waits for the result."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")
