"""Media loaders that break one promise each, derived from a loader of toy documents."""

import dataclasses
import io
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence as Seq
from typing import Any, ClassVar

import msgspec
import numpy as np
from honest.media_loader import (
    MAGIC,
    Heard,
    Said,
    Sheet,
    SheetLoader,
    SlowSheetLoader,
    Tone,
    document,
    inflated,
    sheets_of,
)

from broken.broken import Broken, Table
from vlmkit.errors import MediaError, RequestCancelled, VlmkitError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.running.prompting.image_loader import ImageLoader
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.image import Image
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Part, ReasoningPart
from vlmkit.types.pages import Pages
from vlmkit_testing import MediaLoaderContract, picture


class IgnoresTheSizeOfItsFile(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return super().parts(sheets, b"", bounds)


class RecognisesEveryFile(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return True


class RecognisesNoFile(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return False


class SearchesTheWholeFile(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return MAGIC in data or b"WAVE" in data


class ChecksOnlyTheContainer(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return data.startswith((MAGIC, b"RIFF"))


class OpensFilesToRecogniseThem(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        try:
            return data.startswith(MAGIC) and bool(sheets_of(data))
        except VlmkitError:
            return False


class NeedsEightBytes(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return data.startswith(MAGIC) and data[7] > 0


class ReturnsNoParts(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        super().load(data, bounds)
        return ()


class ReturnsFileParts(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        super().load(data, bounds)
        return (FilePart(data),)


class ReturnsReasoning(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        return [*super().load(data, bounds), ReasoningPart("hm")]


class Yields(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        return iter(super().load(data, bounds))


class ToneWithoutMemory(Tone):
    num_bytes = 0  # type: ignore[assignment]


class StatesNoMemory(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return MediaPart("audio", ToneWithoutMemory(samples))


class ToneWithAShortDigest(Tone):
    @property
    def digest(self) -> bytes:
        return super().digest[:8]


class HasShortDigests(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return MediaPart("audio", ToneWithAShortDigest(samples))


class DigestsTheFirstBytes(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        begun = Tone(samples[:1024])

        class Begun(Tone):
            digest = begun.digest  # type: ignore[assignment]

        return MediaPart("audio", Begun(samples))


class HasOneDigestForAllMedia(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return super().heard(b"beep")


class DrawsRandomDigests(SheetLoader):
    num_drawn = 0

    def heard(self, samples: bytes) -> MediaPart:
        type(self).num_drawn += 1
        return super().heard(samples + bytes([self.num_drawn % 256]))


class KeepsTheLastFile(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        self.data = data
        time.sleep(0.01)
        return super().load(self.data, bounds)


class CrashesOnTruncatedFiles(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        assert data[len(MAGIC)] > 0, "it has pages"
        return super().load(data, bounds)


class TrustsStatedSizes(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        for _, sheet in sheets:
            if isinstance(sheet, Heard):
                zlib.decompress(sheet.samples)
        return super().parts(enumerate(sheets_of(data), 1), data, bounds)


class HasNoLimits(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return super().parts(sheets, data, PipelineSettings())


class LimitsOnlyTheFileSize(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        if len(data) > bounds.max_media_bytes:
            raise MediaError("a document is too large")
        return super().parts(sheets, data, PipelineSettings())


class LimitsEachMediumAlone(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return [
            part
            for each in sheets
            for part in super(LimitsEachMediumAlone, self).parts([each], data, bounds)
        ]


class CountsPictures(SheetLoader):
    """Counts the pixels of pictures as content."""

    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        parts = super().parts(sheets, data, bounds)
        sizes = [each.image.source_size for each in parts if isinstance(each, ImagePart)]
        self.check([3 * width * height for width, height in sizes], bounds)
        return parts

    def check(self, sizes: Seq[int], bounds: PipelineSettings) -> None:
        if sum(sizes) > bounds.max_media_bytes:
            raise MediaError("the pictures of a document are too large")


class CountsEachPictureAlone(CountsPictures):
    def check(self, sizes: Seq[int], bounds: PipelineSettings) -> None:
        for size in sizes:
            super().check([size], bounds)


class ShowsOneImageTooMany(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        more = changed(bounds, max_images=bounds.max_images + 1)
        return super().parts(sheets, data, more)


class IgnoresPixelLimits(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        limits = ImageLimits(max_bytes=bounds.images.max_bytes)
        return super().parts(sheets, data, changed(bounds, images=limits))


class IgnoresPixelLimitsOfPages(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        return super().load_pages(data, pages, PipelineSettings())


class RefusesFilesAtTheLimit(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        most = max(1, bounds.max_images - 1)
        return super().parts(sheets, data, changed(bounds, max_images=most))


class SkipsImagesAtTheLimit(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        few = changed(bounds, images=ImageLimits(max_pixels=bounds.images.max_pixels - 1))
        parts: list[Part] = []
        for each in sheets:
            try:
                parts += super().parts([each], data, few)
            except MediaError:
                continue
        return parts


class InflatesBeforeItChecks(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        known = list(sheets)
        for _, sheet in known:
            if isinstance(sheet, Heard):
                inflated(sheet.samples, 2**30)
        return super().parts(known, data, bounds)


class ShowsTheFirstPage(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        super().load_pages(data, pages, bounds)
        return super().load_pages(data, Pages(((1, 1),)), bounds)


class CountsPagesFromZero(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        sheets = [Said(""), *sheets_of(data)]
        chosen = [(n, sheets[n - 1]) for n in pages if n <= len(sheets)]
        if len(chosen) < len(pages):
            raise MediaError("no such page")
        return self.parts(chosen, data, bounds)


class SkipsMissingPages(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        sheets = sheets_of(data)
        if not (there := [(n, sheets[n - 1]) for n in pages if n <= len(sheets)]):
            raise MediaError("no such page")
        return self.parts(there, data, bounds)


class ShowsPagesInBetween(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        first, last = pages.runs[0][0], pages.runs[-1][1]
        return super().load_pages(data, Pages(((first, last),)), bounds)


class LeavesPageNumbersOut(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return list(without_pages(super().parts(sheets, data, bounds)))


class NumbersChosenPagesFromOne(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        parts = without_pages(super().load_pages(data, pages, bounds))
        return [
            dataclasses.replace(part, page=number) if isinstance(part, ImagePart) else part
            for number, part in enumerate(parts, 1)
        ]


def changed(bounds: PipelineSettings, **fields: Any) -> PipelineSettings:
    return PipelineSettings(
        **{
            "max_images": bounds.max_images,
            "max_media_bytes": bounds.max_media_bytes,
            "images": bounds.images,
            **fields,
        }
    )


def without_pages(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield dataclasses.replace(part, page=None) if isinstance(part, ImagePart) else part


class CachesFilesByTheirFirstBytes(SheetLoader):
    def __init__(self) -> None:
        self.opened: dict[tuple[bytes, str], Seq[Part]] = {}

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        key = data[:16], repr(bounds)
        if key not in self.opened:
            self.opened[key] = super().load(data, bounds)
        return self.opened[key]


class CachesFilesByTheirEnds(ImageLoader):
    opened: ClassVar[dict[Any, tuple[ImagePart]]] = {}  # of all loaders

    def load(self, data: bytes, bounds: PipelineSettings) -> tuple[ImagePart]:
        key = len(data), data[:64], data[-64:], repr(bounds)
        if key not in self.opened:
            self.opened[key] = super().load(data, bounds)
        return self.opened[key]


class OpensPagesBeforeItChecks(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        for sheet in sheets_of(data):
            if isinstance(sheet, Heard):
                inflated(sheet.samples, 2**30)
        return super().load_pages(data, pages, bounds)


class OpensFilesOfCancelledRequests(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> SlowSheetLoader:
        return self


class SharesCancellationBetweenRequests(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> SlowSheetLoader:
        self._cancellation = cancellation
        return self


class LosesPageLoadingForRequests(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> Any:
        return Whole(super().for_request(cancellation))


class Whole:
    def __init__(self, loader: SheetLoader) -> None:
        self.recognises, self.load = loader.recognises, loader.load


class ChecksCancellationOnce(SlowSheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        self._cancellation.check()
        for _ in (sheets := list(sheets)):
            time.sleep(self.page_s)
        return SheetLoader.parts(self, sheets, data, bounds)


class StopsAfterBrokenFiles(SheetLoader):
    num_broken = 0

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        if self.num_broken > 2:
            raise MediaError("there were too many broken files")
        try:
            return super().load(data, bounds)
        except MediaError:
            self.num_broken += 1
            raise


class KeepsTheNewestBounds(SheetLoader):
    """Lets other threads run in between, as a large file would."""

    bounds = PipelineSettings()

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        self.bounds = bounds
        time.sleep(0.0002)
        return super().load(data, self.bounds)


class CountsNoImagesOfPages(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        one = len(pages) > 1
        most = msgspec.structs.replace(bounds, max_images=99) if one else bounds
        return super().load_pages(data, pages, most)


class SelectsTheEnds(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        ends = Pages((pages.runs[0], *pages.runs[1:][-1:]))
        return super().load_pages(data, ends, bounds)


class RecognisesNothingForRequests(SlowSheetLoader):
    page_s = 0.0
    is_for_request = False

    def for_request(self, cancellation: Cancellation) -> "SlowSheetLoader":
        made = type(self)(cancellation)
        made.is_for_request = True
        return made

    def recognises(self, data: bytes) -> bool:
        return not self.is_for_request and super().recognises(data)


class OnLoader(MediaLoaderContract):
    def __init__(self, kind: type[SheetLoader]) -> None:
        self._kind = kind

    def make(self) -> SheetLoader:
        return self._kind()

    def files(self) -> list[bytes]:
        small = [picture(8, 6, seed=seed) for seed in range(3)]
        return [
            document("one", small[0], bytes(range(250)) * 4, small[1], bytes(range(9)) * 90),
            document(small[2], "and so on", small[1], "the end"),
            document(b"beep" * 99),
        ]

    def lengthy(self) -> bytes:
        return document(*["on and on"] * 1000)

    def nearly_equal(self) -> tuple[bytes, bytes]:
        return document(bytes(9999)), document(bytes(9998) + b"\1")

    def swelling(self) -> bytes:
        return document(bytes(2**25))


class OnImages(MediaLoaderContract):
    def __init__(self, kind: type[ImageLoader]) -> None:
        self._kind = kind

    def make(self) -> ImageLoader:
        return self._kind()

    def files(self) -> list[bytes]:
        contents = [io.BytesIO(), io.BytesIO()]
        for seed, content in enumerate(contents):
            picture(seed=seed).to_pil().save(content, "BMP")
        return [content.getvalue() for content in contents]


class OnPictures(OnLoader):
    """The contract on a loader of documents of pictures, which are larger than their files."""

    def files(self) -> list[bytes]:
        plain = [Image.open(np.full((40, 50, 3), grey, np.uint8)) for grey in range(3)]
        return [document(*plain), document(plain[1], plain[0])]


TABLE = Table(
    MediaLoaderContract,
    OnLoader,
    SheetLoader,
    (
        Broken(
            CachesFilesByTheirFirstBytes,
            "Every byte of a file counts, also for a cache of its content.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            CachesFilesByTheirEnds,
            "Every byte of a file counts, also for a cache of all loaders.",
            "files_of_equal_length_and_ends_do_not_mix",
            honest=ImageLoader,
            on=OnImages,
        ),
        Broken(
            OpensFilesOfCancelledRequests,
            "load() of a cancelled request raises RequestCancelled.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            honest=SlowSheetLoader,
        ),
        Broken(
            SharesCancellationBetweenRequests,
            "for_request() returns a loader for the files of one request.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            raises=(RequestCancelled,),
            honest=SlowSheetLoader,
        ),
        Broken(
            LosesPageLoadingForRequests,
            "for_request() of a page loader returns a page loader.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            honest=SlowSheetLoader,
        ),
        Broken(
            ChecksCancellationOnce,
            "load() raises within a second after a cancellation.",
            "cancelling_stops_a_file_that_is_being_opened",
            honest=SlowSheetLoader,
        ),
        Broken(
            OpensPagesBeforeItChecks,
            "Limits are checked before memory is allocated, also for chosen pages.",
            "bounds_are_checked_before_memory_is_allocated",
        ),
        Broken(
            RecognisesEveryFile,
            "recognises() accepts only files of its formats.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            RecognisesNoFile,
            "recognises() accepts the files that load() opens.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            SearchesTheWholeFile,
            "recognises() reads only the first bytes.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            ChecksOnlyTheContainer,
            "A shared container format is not enough to recognise a file.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            OpensFilesToRecogniseThem,
            "recognises() opens nothing.",
            "the_first_bytes_identify_a_file",
        ),
        Broken(
            NeedsEightBytes,
            "A file may be shorter than any signature.",
            "the_first_bytes_identify_a_file",
            raises=(IndexError,),
        ),
        Broken(
            ReturnsNoParts,
            "load() returns the content of the file.",
            "a_file_becomes_parts_of_a_message",
        ),
        Broken(
            ReturnsFileParts, "load() returns no file parts.", "a_file_becomes_parts_of_a_message"
        ),
        Broken(
            ReturnsReasoning,
            "A file contains images, media and text, but no reasoning.",
            "a_file_becomes_parts_of_a_message",
        ),
        Broken(Yields, "load() returns a sequence.", "a_file_becomes_parts_of_a_message"),
        Broken(
            StatesNoMemory,
            "A medium states its memory.",
            "a_file_becomes_parts_of_a_message",
        ),
        Broken(
            HasShortDigests, "A medium's digest is a sha256.", "a_file_becomes_parts_of_a_message"
        ),
        Broken(
            HasOneDigestForAllMedia,
            "Different media have different digests.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            DigestsTheFirstBytes,
            "A digest covers the whole medium.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            DrawsRandomDigests,
            "Equal media have equal digests.",
            "digests_depend_on_the_file_alone",
        ),
        Broken(
            KeepsTheLastFile,
            "Several threads may call the methods at once.",
            "digests_depend_on_the_file_alone",
        ),
        Broken(
            CrashesOnTruncatedFiles,
            "A truncated file is refused with a MediaError.",
            "a_file_that_was_cut_is_opened_or_refused",
            raises=(IndexError,),
        ),
        Broken(
            TrustsStatedSizes,
            "A hostile file is refused with a MediaError.",
            "a_file_with_changed_bytes_is_opened_or_refused",
            raises=(zlib.error,),
        ),
        Broken(
            HasNoLimits, "A file over the limits is refused.", "a_file_over_the_bounds_is_refused"
        ),
        Broken(
            LimitsOnlyTheFileSize,
            "max_media_bytes also limits the content of a file.",
            "no_bound_is_exceeded",
        ),
        Broken(
            LimitsEachMediumAlone,
            "max_media_bytes limits all media of a file together.",
            "no_bound_is_exceeded",
        ),
        Broken(
            LimitsEachMediumAlone,
            "max_media_bytes limits the media of all selected pages together.",
            "pages_share_the_bound_of_bytes",
        ),
        Broken(
            CountsEachPictureAlone,
            "max_media_bytes limits the pages of a document together.",
            "pages_share_the_bound_of_bytes",
            honest=CountsPictures,
            on=OnPictures,
        ),
        Broken(ShowsOneImageTooMany, "At most max_images are shown.", "no_bound_is_exceeded"),
        Broken(
            IgnoresPixelLimits,
            "Image limits also apply to the images of a file.",
            "no_bound_is_exceeded",
        ),
        Broken(
            IgnoresPixelLimitsOfPages,
            "load_pages() enforces the limits of load().",
            "no_bound_is_exceeded",
        ),
        Broken(
            RefusesFilesAtTheLimit,
            "A file within the limits is opened.",
            "a_bound_that_just_suffices_refuses_nothing",
            raises=(MediaError,),
        ),
        Broken(
            SkipsImagesAtTheLimit,
            "Nothing of a file within the limits is left out.",
            "a_bound_that_just_suffices_refuses_nothing",
        ),
        Broken(
            InflatesBeforeItChecks,
            "Limits are checked before memory is allocated.",
            "bounds_are_checked_before_memory_is_allocated",
        ),
        Broken(
            IgnoresTheSizeOfItsFile,
            "max_media_bytes limits a document as a file.",
            "a_document_over_the_bound_of_files_is_refused",
        ),
        Broken(
            ShowsTheFirstPage,
            "load_pages() returns the chosen pages.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            CountsPagesFromZero,
            "Pages are counted from 1.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            SkipsMissingPages,
            "A page that does not exist is refused.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            ShowsPagesInBetween,
            "Pages between chosen pages are not shown.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            LeavesPageNumbersOut,
            "A page image has a page number.",
            "a_page_that_is_an_image_says_which_it_is",
        ),
        Broken(
            NumbersChosenPagesFromOne,
            "A page keeps its number in the file, whatever pages are chosen.",
            "a_page_that_is_an_image_says_which_it_is",
        ),
        Broken(
            StopsAfterBrokenFiles,
            "A broken file does not change how later ones are opened.",
            "a_refused_file_harms_no_other",
        ),
        Broken(
            KeepsTheNewestBounds,
            "A file is opened within the bounds of its own request.",
            "a_refused_file_harms_no_other",
        ),
        Broken(
            CountsNoImagesOfPages,
            "Several selected pages are within the bounds, too.",
            "no_bound_is_exceeded",
        ),
        Broken(
            SelectsTheEnds,
            "Any selection of pages may be chosen.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            RecognisesNothingForRequests,
            "A loader for a request opens the same formats.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            honest=SlowSheetLoader,
        ),
    ),
)
