"""``vlmkit keys``: manages the API keys of a server."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.cli.group import CommandGroup
from vlmkit.settings.scope import SCOPES
from vlmkit_server.settings.server import ServerSettings

if TYPE_CHECKING:
    from vlmkit_server.auth.key import Key

DAY_S = 86_400


@click.group(cls=CommandGroup)
def keys() -> None:
    """Create, list and revoke API keys.

    The file is server.keys_file of the config, or the one that --file names. A running server loads
    changes after SIGHUP.
    """


def _in_file(command: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "--file",
        "key_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        show_default="server.keys_file",
        help="File of keys.",
    )
    return options.configured(file(command))


@keys.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("chat", "embed"),
    show_default="chat and embed",
    help="Its permissions: answers, embeddings, prompts of raw tokens, metrics, loading and "
    "unloading of models; may be repeated.",
)
@click.option(
    "--tenant",
    metavar="NAME",
    show_default="a new one",
    help="Its tenant: keys of one tenant share caches.",
)
@click.option(
    "--limit",
    "limits",
    metavar="LIMIT",
    multiple=True,
    show_default="server.limits.key",
    help="A rate limit, such as tokens=20000/minute or images=500/day; may be repeated.",
)
@click.option(
    "--days", type=click.IntRange(min=1), show_default="unlimited", help="Days until it expires."
)
@_in_file
def add(
    *,
    name: str,
    scopes: Sequence[Any],
    tenant: str | None,
    limits: Sequence[str],
    days: int | None,
    key_file: Path | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Create a key called NAME and print its secret, which is not stored."""
    import msgspec

    from vlmkit.errors import ConfigError
    from vlmkit_server.auth import key as key_module
    from vlmkit_server.auth.key_file import add_line, read_lines
    from vlmkit_server.settings.limits import LimitTexts, limits_of

    path = _path(key_file, config_file, assignments)
    lives_s = None if days is None else days * DAY_S
    try:
        msgspec.convert(limits, LimitTexts, strict=False)
        limits_of(limits)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"--limit {', '.join(map(repr, limits))}: each must be a unit, a number and a time, "
            "none twice",
            hint="units: requests, tokens, image_tokens, images; times: minute, hour, day, month; "
            "such as tokens=20000/minute",
        ) from error
    key, secret = key_module.new_key(
        name, tuple(scopes), tenant=tenant, lives_s=lives_s, limits=tuple(limits)
    )
    try:
        msgspec.convert(msgspec.to_builtins(key), key_module.Key)
    except msgspec.ValidationError as error:
        stated = f"NAME {name!r}" + ("" if tenant is None else f" and --tenant {tenant!r}")
        raise ConfigError(
            f"{stated} must be 1 to 64 letters, digits or any of _ . @ : + -",
            hint="leave other signs out, such as spaces",
        ) from error
    if path.exists():
        read_lines(path)  # nothing is appended to another kind of file
    add_line(path, key)
    click.echo(secret)
    click.echo(
        f"key {key.id} was added to {path}; a running server accepts it after SIGHUP", err=True
    )


@keys.command("list")
@options.as_json
@_in_file
def list_(
    *,
    as_json: bool,
    key_file: Path | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Print all keys, without their secrets."""
    from vlmkit_server.auth.key import Key
    from vlmkit_server.auth.key_file import read_lines, valid_keys

    lines = read_lines(_path(key_file, config_file, assignments))
    valid = {key.id for key in valid_keys(lines)}
    rows = [_row(line, line.id in valid) for line in lines if isinstance(line, Key)]
    names = ("id", "name", "tenant", "scopes", "limits", "created", "expires", "state")
    if as_json:
        output.json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.columns(tuple(name.upper() for name in names), rows)


@keys.command()
@click.argument("key_id", metavar="ID")
@_in_file
def revoke(
    *,
    key_id: str,
    key_file: Path | None,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Revoke the key ID."""
    import time

    from vlmkit.errors import ConfigError
    from vlmkit_server.auth.key_file import Revoked, add_line, read_lines, valid_keys

    path = _path(key_file, config_file, assignments)
    if key_id not in {key.id for key in valid_keys(read_lines(path))}:
        raise ConfigError(
            f"there is no valid key {key_id!r} in {path}", hint=f"vlmkit keys list --file {path}"
        )
    add_line(path, Revoked(key_id, int(time.time())))
    click.echo(f"revoked; a running server refuses key {key_id} after SIGHUP", err=True)


def _path(key_file: Path | None, config_file: Path | None, assignments: Sequence[str]) -> Path:
    from vlmkit.cli.loading import read_with_plugins
    from vlmkit.errors import ConfigError

    if key_file is not None:
        return key_file
    layered, _ = read_with_plugins(config_file, assignments)
    if not (named := layered.config.table("server", ServerSettings).keys_file):
        raise ConfigError("no file of keys is named", hint="--file FILE, or server.keys_file")
    return Path(named)


def _row(key: "Key", is_valid: bool) -> tuple[str, ...]:
    state = "valid" if is_valid else "revoked"
    if is_valid and key.is_over(datetime.now(UTC).timestamp()):
        state = "expired"
    ends = "never" if key.expires_s is None else _day(key.expires_s)
    scopes, limits = ",".join(key.scopes), ",".join(key.limits) or "-"
    return (key.id, key.name, key.tenant, scopes, limits, _day(key.created_s), ends, state)


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
