"""Builds the media encoder ``remote`` from its settings."""

from dataclasses import replace

from vlmkit.errors import ConfigError
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.plugins.kinds import MEDIA_ENCODER
from vlmkit.plugins.registry import BuildContext
from vlmkit_grpc.addresses import encoder_addresses
from vlmkit_grpc.credentials import channel_credentials, metadata_of, secret_of
from vlmkit_grpc.encoders.encoder import RemoteEncoder
from vlmkit_grpc.encoders.peer import EncoderPeer
from vlmkit_grpc.settings import RemoteEncoderSettings

SECTION = "media_encoder"
NONE, NAME = "none", "remote"


def build_remote_encoder(context: BuildContext) -> RemoteEncoder:
    """Build the local encoder, connect to the others, and return an encoder that uses all.

    Raises:
        ConfigError: a setting is invalid, or the model has no encoder here.
        EngineError: an encoder is another one than expected, or none can be reached and none is
            here.
    """
    settings = _settings(context)
    addresses = encoder_addresses(settings.addresses)
    credentials = channel_credentials(settings, SECTION)
    metadata = metadata_of(secret_of(settings, SECTION))
    local = build_local(context)
    peers = [EncoderPeer(address, settings, credentials, metadata) for address in addresses]
    context.on_stage("remote encoders")
    try:
        return RemoteEncoder(peers, local, context.files.fingerprint, settings)
    except BaseException:
        for peer in peers:
            peer.close()
        if local is not None:
            local.close()
        raise


def build_local(context: BuildContext) -> MediaEncoder | None:
    """Build the encoder in this process; None if the settings have none."""
    name = local_name(context)
    if name is None:
        return None
    registry = context.providers(MEDIA_ENCODER)
    return registry.build(name, _settings(context).local_settings, _as_only(context, name))


def examine_remote_encoder(context: BuildContext) -> str:
    """Return where images are encoded; builds nothing."""
    settings, name = _settings(context), local_name(context)
    targets = [address.target for address in encoder_addresses(settings.addresses)]
    here = ""
    if name is not None:
        registry = context.providers(MEDIA_ENCODER)
        how = registry.examine(name, settings.local_settings, _as_only(context, name))
        here = f", and by {', '.join(filter(None, (name, how)))}"
    return f"by {'encoders' if targets[1:] else 'the encoder'} at {', '.join(targets)}{here}"


def plan_remote_encoder(context: BuildContext, load: PlannedLoad) -> MemoryPlan:
    """Return the memory of the encoder in this process."""
    name = local_name(context)
    if name is None:
        return MemoryPlan(needs=())
    registry, settings = context.providers(MEDIA_ENCODER), _settings(context).local_settings
    found = registry.plan(name, settings, _as_only(context, name), load)
    return found if found is not None else MemoryPlan(needs=())


def local_name(context: BuildContext) -> str | None:
    """Return the provider of the encoder in this process, or None.

    For ``auto``, the encoder of the engine's distribution is preferred, as without remote encoders.

    Raises:
        ConfigError: it is this provider itself, or has settings and does not exist.
        PluginError: no provider can serve the model.
    """
    settings = _settings(context)
    if settings.local == NONE:
        if settings.local_settings:
            raise ConfigError("media_encoder.local is 'none', and has local_settings")
        return None
    registry = context.providers(MEDIA_ENCODER)
    if settings.local == "auto":
        engine = context.components.get("engine", ("", {}))[0]
        if engine in {registry.key(each) for each in registry.able(context.files)}:
            return engine
    chosen = registry.choose(settings.local, context.files)
    if chosen.name == NAME:
        raise ConfigError("media_encoder.local names the encoder 'remote' itself")
    return registry.key(chosen)


def _settings(context: BuildContext) -> RemoteEncoderSettings:
    settings: RemoteEncoderSettings = context.settings or RemoteEncoderSettings()
    return settings


def _as_only(context: BuildContext, name: str) -> BuildContext:
    """Return the context that the local encoder would have without the others."""
    own = (name, _settings(context).local_settings)
    return replace(context, components={**context.components, SECTION: own})
