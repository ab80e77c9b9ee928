"""Limits of one pipeline and its requests."""

import msgspec

from vlmkit.settings.bounds import Count, Positive, Seconds, Threads
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.settings.images import ImageLimits


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one pipeline and its requests.

    Attributes:
        max_images: maximum number of images of one request.
        max_media: maximum number of files and media of other kinds of one request.
        max_media_bytes: maximum size of these together, as files and as their content.
        max_output_tokens: maximum number of tokens of one answer, whatever a request sets; null
            leaves it to the context.
        max_unread_tokens: unread chunks of a slow reader above which its request is paused.
        feature_cache_bytes: memory of the cache of media features; 0 disables it. Each entry counts
            2 KiB besides its arrays.
        image_cache_bytes: memory of the cache of preprocessed images, which need no decoding; 0
            disables it. Each entry counts 2 KiB besides its arrays.
        constraint_cache_bytes: memory of the cache of compiled constraints; 0 disables it. Each
            entry counts 1 MiB and 64 bytes per character.
        max_decoding_pixels: maximum number of pixels of all images of one request, images in files
            included.
        max_decoding_bytes: memory for decoding and preprocessing images at the same time, by the
            measured needs of each format. A request that needs more than is free waits; one that
            needs more than this is decoded alone.
        max_prepared_bytes: memory of preprocessed images that wait for an answer; above it, no
            further image is decoded.
        prepare_timeout_s: maximum time that a request waits for this memory, and that a renderer
            takes for a prompt.
        num_workers: threads that decode and preprocess images and tokenize long texts, up to 1,024.
            Requests with files have as many threads of their own. One tenant uses all but one.
        slow_step_s: time of one step, or of encoding one batch of media, after which the log says
            what is being computed; ten times the longest so far, if that is more.
        stuck_step_s: time after which the model counts as failed; thirty times the longest so far,
            if that is more; null disables it.
        images: limits of image files.
        image_tokens: the size in which the model sees images, by the requested level of detail.
    """

    max_images: Positive = 16
    max_media: Positive = 16
    max_media_bytes: Positive = 64 * 2**20
    max_output_tokens: Positive | None = None
    max_unread_tokens: Positive = 256
    feature_cache_bytes: Count = 256 * 2**20
    image_cache_bytes: Count = 256 * 2**20
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
