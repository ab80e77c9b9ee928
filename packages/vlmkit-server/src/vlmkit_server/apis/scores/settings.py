"""Settings of the scoring API."""

import msgspec


class ScoresSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pairs of a query and a document are scored.

    Attributes:
        yes_no_models: served names of models that say ``yes`` or ``no`` about a pair. Other models
            are scored by their embeddings, or by yes and no if they have none.
        system_prompt: the message of the system that asks such a model for ``yes`` or ``no``.
        instruction: what makes a document relevant, where a request does not say; may be empty.
    """

    yes_no_models: tuple[str, ...] = ()
    system_prompt: str = (
        "Does the document match the query? Follow the instruction, if there is one. "
        "Reply only yes or no."
    )
    instruction: str = ""
