"""The media encoder ``remote``: large images go to encoders in other processes.

The digest of an image selects the encoder, so that its cache is of use to all who use it. An image
that no other encoder can take is encoded here, if there is a local encoder.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence as Seq

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import (
    NUM_REMOTE,
    NUM_REMOTE_FAILURES,
    NUM_REMOTE_FALLBACKS,
    REMOTE_FAILURES,
    EncodesInScopes,
    MediaEncoder,
    StatesPrecision,
)
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.running.fleet.routing import rendezvous_weight
from vlmkit_grpc.encoders.peer import (
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    EncoderFailure,
    EncoderPeer,
    WrongEncoderError,
)
from vlmkit_grpc.settings import RemoteEncoderSettings

log = logging.getLogger(__name__)

MAX_CONCURRENCY = 64
NUM_ATTEMPTS = 2
"""Encoders that get the inputs of one image, if there is no local encoder.

With one, it is a single one: what ends an encoder may end the next one, too.
"""
JOIN_S = 5.0


class RemoteEncoder:
    """Sends images to other processes: a ``MediaEncoder``.

    Args:
        peers: the encoders; closed with this one.
        local: encodes in this process; None for none. Closed with this one.
        model_digest: of the files of the model, which all must have.
        settings: the limits.

    Attributes:
        identity: what computes the features, here and there.
        media_kinds: the kinds of media that all take.
        max_concurrency: how many calls of ``encode`` may run at once.
        precision: the precision of the computation.

    Raises:
        EngineError: an encoder computes other features than expected, or none can be reached and
            there is no local one.
    """

    def __init__(
        self,
        peers: Seq[EncoderPeer],
        local: MediaEncoder | None,
        model_digest: str,
        settings: RemoteEncoderSettings,
    ) -> None:
        self._peers = list(peers)
        self._local = local
        self._model_digest = model_digest
        self._settings = settings
        num_local = getattr(local, "max_concurrency", 1) if local is not None else 0
        self._local_places = threading.BoundedSemaphore(max(1, num_local))
        num_remote = len(self._peers) * settings.max_concurrency
        self.max_concurrency = min(MAX_CONCURRENCY, num_remote + num_local)
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._is_closed = threading.Event()
        self._has_absent = threading.Event()
        self.identity, self.media_kinds, self.precision = "", frozenset[str](), ""
        if local is not None:
            self.identity, self.media_kinds = local.identity, local.media_kinds
            self.precision = local.precision if isinstance(local, StatesPrecision) else ""
        self._connect_first()
        self._connector = threading.Thread(
            target=self._connect_absent, name="vlmkit-encoders", daemon=True
        )
        self._connector.start()

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the features of each image, in order; errors as for :meth:`encode_in_scopes`."""
        return self.encode_in_scopes(slots, [b""] * len(slots))

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        """Return the features of each image, in order.

        Raises:
            MediaError: an image cannot be encoded.
            EngineError: no encoder can take an image now, and there is no local one.
        """
        found: dict[int, MediaFeatures] = {}
        for place, (slot, scope) in enumerate(zip(slots, scopes, strict=True)):
            if self._local is None or num_pixels(slot) >= self._settings.min_pixels:
                features = self._encode_remotely(slot, scope)
                if features is not None:
                    found[place] = features
        rest = [place for place in range(len(slots)) if place not in found]
        if rest:
            local = self._encode_here([slots[i] for i in rest], [scopes[i] for i in rest])
            found |= dict(zip(rest, local, strict=True))
        return [found[place] for place in range(len(slots))]

    def counters(self) -> Mapping[str, int]:
        """Return the numbers of images that were encoded elsewhere, and of failures by reason."""
        names = [NUM_REMOTE, NUM_REMOTE_FALLBACKS]
        names += [f"{NUM_REMOTE_FAILURES}{kind}" for kind in REMOTE_FAILURES]
        with self._lock:
            return {name: self._counters[name] for name in names}

    def close(self) -> None:
        """End all connections, and close the local encoder."""
        self._is_closed.set()
        self._has_absent.set()
        for peer in self._peers:
            peer.close()
        self._connector.join(JOIN_S)
        if self._local is not None:
            self._local.close()

    # Encoding.

    def _encode_remotely(self, slot: MediaSlot, scope: bytes) -> MediaFeatures | None:
        """Return the features of an image; None if the local encoder has to compute them.

        Raises:
            MediaError: the image cannot be encoded.
            EngineError: there is no local encoder.
        """
        deadline_s = time.monotonic() + self._settings.timeout_s
        reason, num_left = "none is connected", NUM_ATTEMPTS if self._local is None else 1
        is_absent = True
        for peer in self._in_order(scope, slot.digest, deadline_s):
            is_absent = False
            try:
                features, _ = peer.encode(slot, scope, self.identity, deadline_s)
            except EncoderFailure as failure:
                self._note(peer, failure)
                reason = f"{peer.who}: {failure.reason}"
                num_left -= failure.had_inputs
                if not num_left or time.monotonic() >= deadline_s:
                    break
            else:
                self._count(NUM_REMOTE)
                return features
            finally:
                peer.leave()
        if is_absent:
            has_any = any(peer.is_connected for peer in self._peers)
            self._count(f"{NUM_REMOTE_FAILURES}{'busy' if has_any else 'absent'}")
            reason = "all are busy" if has_any else reason
        if self._local is None:
            raise EngineError(f"no encoder can take this image: {reason}", hint="try again later")
        self._count(NUM_REMOTE_FALLBACKS)
        return None

    def _in_order(self, scope: bytes, digest: bytes, deadline_s: float) -> Iterator[EncoderPeer]:
        """Yield the connected encoders for an image, each with a place that the caller gives back.

        Those with a free place come first. If none has one, the preferred one is waited for.
        """
        key = scope + digest
        peers = sorted(
            self._peers, key=lambda peer: rendezvous_weight(key, peer.name), reverse=True
        )
        busy = []
        for peer in peers:
            if peer.is_connected:
                if peer.enter(0.0):
                    yield peer
                else:
                    busy.append(peer)
        for peer in busy:
            if peer.is_connected and peer.enter(deadline_s - time.monotonic()):
                yield peer

    def _encode_here(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        local = self._local
        if local is None:
            return []
        with self._local_places:
            if isinstance(local, EncodesInScopes):
                return local.encode_in_scopes(slots, scopes)
            return local.encode(slots)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counters[name] += 1

    def _note(self, peer: EncoderPeer, failure: EncoderFailure) -> None:
        """Count a failure; log it if the encoder is not used for a while."""
        self._count(f"{NUM_REMOTE_FAILURES}{failure.kind}")
        if not failure.is_lost:
            log.warning("%s did not encode an image: %s", peer.who, failure.reason)
            return
        with self._lock:
            was_connected, peer.is_connected = peer.is_connected, False
        if was_connected:
            log.warning("%s is lost (%s)%s", peer.who, failure.reason, self._instead())
        self._has_absent.set()

    def _instead(self) -> str:
        return "" if self._local is None else "; others, or this process, encode in its place"

    # Connections.

    def _connect_first(self) -> None:
        """Connect to all encoders that are there.

        Raises:
            EngineError: one computes other features, or none can be reached and none is here.
        """
        needs_one = self._local is None
        errors = []
        for peer in self._peers:
            waits = needs_one and not self.identity
            settings = self._settings
            timeout_s = settings.start_timeout_s if waits else settings.connect_timeout_s
            try:
                self._connect(peer, timeout_s, waits=waits)
            except WrongEncoderError:
                raise
            except EngineError as error:
                errors.append(error)
                log.warning("%s%s", error, self._instead())
        if errors:
            self._has_absent.set()
        if not self.identity:
            raise errors[0] if errors else ConfigError("media_encoder.addresses names no encoder")

    def _connect(self, peer: EncoderPeer, timeout_s: float, *, waits: bool = False) -> None:
        """Connect to an encoder, and check that it is the expected one.

        Raises:
            EngineError: it is not, or cannot be reached.
        """
        found = peer.describe(timeout_s, self._model_digest, self.identity, waits=waits)
        if not self.identity:
            self.identity = found.identity
            self.media_kinds = frozenset(found.media_kinds)
            self.precision = found.precision
        peer.is_connected = True
        log.info("%s is connected", peer.who)

    def _connect_absent(self) -> None:
        """Connect to absent encoders again and again, with growing pauses."""
        reported: dict[str, str] = {}
        while not self._is_closed.is_set():
            self._has_absent.wait()
            self._has_absent.clear()
            for peer in [each for each in self._peers if not each.is_connected]:
                if time.monotonic() < peer.retry_at_s or self._is_closed.is_set():
                    continue
                try:
                    self._connect(peer, self._settings.connect_timeout_s)
                except EngineError as error:
                    peer.retry_at_s = time.monotonic() + peer.pause_s
                    peer.pause_s = min(MAX_PAUSE_S, peer.pause_s * 2)
                    if reported.get(peer.name) != str(error):
                        reported[peer.name] = str(error)
                        log.warning("%s", error)
                else:
                    peer.pause_s = MIN_PAUSE_S
                    reported.pop(peer.name, None)
            if not all(peer.is_connected for peer in self._peers):
                self._is_closed.wait(MIN_PAUSE_S)
                self._has_absent.set()


def num_pixels(slot: MediaSlot) -> int:
    """Return the pixels of an image after the resizing by the processor, as far as it tells."""
    if slot.transform is not None:
        height, width = slot.transform.used_size
        return height * width
    sizes = (math.prod(array.shape) for array in slot.inputs.values())
    return max(sizes, default=0) // 3
