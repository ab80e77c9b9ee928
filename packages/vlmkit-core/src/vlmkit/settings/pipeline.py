"""Bounds of one pipeline."""

import msgspec

from vlmkit.settings.bounds import Count, Positive, Seconds, Threads
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.images import ImageLimits


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one pipeline.

    Attributes:
        max_images: images of one request.
        max_media: files and media of other kinds in one request.
        max_media_bytes: size of these together, as files and as what they hold.
        max_output_tokens: most tokens of one answer, whatever a request asks; null leaves that
            to the context.
        max_unread_tokens: chunks a slow reader may have unread before its request is held.
        feature_cache_bytes: memory for features of media that were there before, of which each
            counts 2 KiB besides its arrays; 0 keeps none.
        constraint_cache_bytes: memory for compiled constraints that may be asked for again, each of
            which counts 1 MiB and 64 bytes a character; 0 keeps none.
        max_decoding_pixels: pixels of all images of one request, with those in its files; more are
            refused.
        max_decoding_bytes: memory that decoding images and making them ready takes at once, by what
            each format was measured to take; requests that need more than is free wait, and one
            that needs more than this is decoded alone.
        max_prepared_bytes: what images come to that wait for an answer, above which no other is
            decoded.
        prepare_timeout_s: time that a request waits for this, and that a renderer has for its
            prompt.
        num_workers: threads that decode and preprocess images and tokenize long texts, 1,024 at
            most; requests with files have as many of their own. One tenant uses all but one.
        slow_step_s: time of one step, or of encoding one lot of media, after which the log says
            what is being computed; ten times the longest that was seen, if that is more.
        stuck_step_s: time after which the model counts as failed; thirty times the longest that
            was seen, if that is more; never when null.
        images: what pictures are refused.
        image_tokens: how large pictures are shown, by the detail that a request asks for.
    """

    max_images: Positive = 16
    max_media: Positive = 16
    max_media_bytes: Positive = 64 * 2**20
    max_output_tokens: Positive | None = None
    max_unread_tokens: Positive = 256
    feature_cache_bytes: Count = 256 * 2**20
    constraint_cache_bytes: Count = 64 * 2**20
    max_decoding_pixels: Positive = 200_000_000
    max_decoding_bytes: Positive = 512 * 2**20
    max_prepared_bytes: Positive = 2 * 2**30
    prepare_timeout_s: Seconds = 60.0
    num_workers: Threads = 4
    slow_step_s: Seconds = 60.0
    stuck_step_s: Seconds | None = 900.0
    images: ImageLimits = ImageLimits()
    image_tokens: ImageTokens = ImageTokens()
