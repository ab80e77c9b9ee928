"""vlmkit on Ray Serve. ``serve run vlmkit_ray:app config=vlmkit.toml`` runs :func:`app`."""

from typing import Any


def app(args: dict[str, str]) -> Any:
    """Return the application of Ray Serve that serves the models of a config.

    Args:
        args: ``config``, the path of the config. Each node must have the same file there.

    Raises:
        ConfigError: another argument is given, or the config is invalid or has no models.
    """
    from vlmkit_ray.application import application

    return application(args)
