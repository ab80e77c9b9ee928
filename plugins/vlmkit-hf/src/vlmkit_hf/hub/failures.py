"""Translates the errors of the hub client into errors with a hint for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from vlmkit.errors import CheckpointError, VlmkitError


@contextmanager
def explained(reference: str, revision: str | None) -> Iterator[None]:
    """Convert errors of huggingface_hub and of the network into a CheckpointError.

    Raises:
        CheckpointError: the model does not exist, is not accessible, or cannot be fetched now.
    """
    from huggingface_hub import errors

    try:
        yield
    except VlmkitError:
        raise
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"model {reference!r} is gated on the hub",
            hint="accept its terms there, then set HF_TOKEN to a token of the same account",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"model {reference!r} does not exist on the hub, or is private",
            hint="check the name; for a private model set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"model {reference!r} has no revision {revision!r} on the hub"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        raise _unreachable(reference) from error
    except Exception as error:  # the network may raise anything
        raise CheckpointError(
            f"model {reference!r} could not be downloaded from the hub",
            hint="see the log, and try again: what was downloaded is kept",
        ) from error


def _unreachable(reference: str) -> CheckpointError:
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        return CheckpointError(
            f"model {reference!r} is not completely in the cache, and HF_HUB_OFFLINE is set",
            hint=f"unset it, and fetch the model once: vlmkit models pull {reference}",
        )
    return CheckpointError(
        f"model {reference!r} is not completely in the cache, and the hub cannot be reached",
        hint="check the network, HF_ENDPOINT and proxies",
    )
