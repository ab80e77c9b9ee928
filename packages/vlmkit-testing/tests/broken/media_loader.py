"""Media loaders that break one promise each, made of one for a toy's documents."""

import dataclasses
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence as Seq
from typing import Any

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
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Part, ReasoningPart
from vlmkit.types.pages import Pages
from vlmkit_testing import MediaLoaderContract, picture


class OpensAnything(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return True


class KnowsNoFile(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return False


class LooksAnywhere(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return MAGIC in data or b"WAVE" in data


class KnowsTheContainerOnly(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return data.startswith((MAGIC, b"RIFF"))


class OpensItToTell(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        try:
            return data.startswith(MAGIC) and bool(sheets_of(data))
        except VlmkitError:
            return False


class NeedsEightBytes(SheetLoader):
    def recognises(self, data: bytes) -> bool:
        return data.startswith(MAGIC) and data[7] > 0


class OpensNothing(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        super().load(data, bounds)
        return ()


class PassesOn(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        super().load(data, bounds)
        return (FilePart(data),)


class GivesThoughts(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        return [*super().load(data, bounds), ReasoningPart("hm")]


class Yields(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        return iter(super().load(data, bounds))


class Weightless(Tone):
    num_bytes = 0  # type: ignore[assignment]


class WeighsNothing(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return MediaPart("audio", Weightless(samples))


class ShortlyDigested(Tone):
    @property
    def digest(self) -> bytes:
        return super().digest[:8]


class DigestsShortly(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return MediaPart("audio", ShortlyDigested(samples))


class DigestsTheBeginning(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        begun = Tone(samples[:1024])

        class Begun(Tone):
            digest = begun.digest  # type: ignore[assignment]

        return MediaPart("audio", Begun(samples))


class HearsOneSound(SheetLoader):
    def heard(self, samples: bytes) -> MediaPart:
        return super().heard(b"beep")


class DrawsAnew(SheetLoader):
    num_drawn = 0

    def heard(self, samples: bytes) -> MediaPart:
        type(self).num_drawn += 1
        return super().heard(samples + bytes([self.num_drawn % 256]))


class KeepsTheLastFile(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        self.data = data
        time.sleep(0.01)
        return super().load(self.data, bounds)


class CrashesOnRests(SheetLoader):
    def load(self, data: bytes, bounds: PipelineSettings) -> Any:
        assert data[len(MAGIC)] > 0, "it has pages"
        return super().load(data, bounds)


class BelievesWhatIsStated(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        for _, sheet in sheets:
            if isinstance(sheet, Heard):
                zlib.decompress(sheet.samples)
        return super().parts(enumerate(sheets_of(data), 1), data, bounds)


class HasNoBounds(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return super().parts(sheets, data, PipelineSettings())


class CountsTheFileAlone(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        if len(data) > bounds.max_media_bytes:
            raise MediaError("a document is too large")
        return super().parts(sheets, data, PipelineSettings())


class CountsEachSoundAlone(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return [
            part
            for each in sheets
            for part in super(CountsEachSoundAlone, self).parts([each], data, bounds)
        ]


class ShowsOneMore(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        more = changed(bounds, max_images=bounds.max_images + 1)
        return super().parts(sheets, data, more)


class MindsNoPixels(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        limits = ImageLimits(max_bytes=bounds.images.max_bytes)
        return super().parts(sheets, data, changed(bounds, images=limits))


class MindsNoPixelsOfPages(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        return super().load_pages(data, pages, PipelineSettings())


class RefusesWhatJustFits(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        most = max(1, bounds.max_images - 1)
        return super().parts(sheets, data, changed(bounds, max_images=most))


class LeavesTheRestOut(SheetLoader):
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


class InflatesFirst(SheetLoader):
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


class LeavesAbsentPagesOut(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        sheets = sheets_of(data)
        if not (there := [(n, sheets[n - 1]) for n in pages if n <= len(sheets)]):
            raise MediaError("no such page")
        return self.parts(there, data, bounds)


class ShowsARange(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        first, last = pages.runs[0][0], pages.runs[-1][1]
        return super().load_pages(data, Pages(((first, last),)), bounds)


class NumbersNoPages(SheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        return list(without_pages(super().parts(sheets, data, bounds)))


class NumbersWhatItShows(SheetLoader):
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


class KnowsFilesByTheirBeginning(SheetLoader):
    def __init__(self) -> None:
        self.opened: dict[tuple[bytes, str], Seq[Part]] = {}

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        key = data[:16], repr(bounds)
        if key not in self.opened:
            self.opened[key] = super().load(data, bounds)
        return self.opened[key]


class OpensPagesBeforeItLooks(SheetLoader):
    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        for sheet in sheets_of(data):
            if isinstance(sheet, Heard):
                inflated(sheet.samples, 2**30)
        return super().load_pages(data, pages, bounds)


class OpensWhatWasCancelled(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> SlowSheetLoader:
        return self


class CancelsAllRequests(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> SlowSheetLoader:
        self._cancellation = cancellation
        return self


class LosesItsPages(SlowSheetLoader):
    def for_request(self, cancellation: Cancellation) -> Any:
        return Whole(super().for_request(cancellation))


class Whole:
    def __init__(self, loader: SheetLoader) -> None:
        self.recognises, self.load = loader.recognises, loader.load


class LooksOnceWhetherItWasCancelled(SlowSheetLoader):
    def parts(
        self, sheets: Iterable[tuple[int, Sheet]], data: bytes, bounds: PipelineSettings
    ) -> Seq[Part]:
        self._cancellation.check()
        for _ in (sheets := list(sheets)):
            time.sleep(self.page_s)
        return SheetLoader.parts(self, sheets, data, bounds)


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


TABLE = Table(
    MediaLoaderContract,
    OnLoader,
    SheetLoader,
    (
        Broken(
            KnowsFilesByTheirBeginning,
            "All bytes of a file distinguish it, also in a cache of its content.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            OpensWhatWasCancelled,
            "load() of a cancelled request raises RequestCancelled.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            honest=SlowSheetLoader,
        ),
        Broken(
            CancelsAllRequests,
            "for_request() returns a loader for the files of one request.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            raises=(RequestCancelled,),
            honest=SlowSheetLoader,
        ),
        Broken(
            LosesItsPages,
            "for_request() returns a loader of pages, if this is one.",
            "a_loader_for_a_request_opens_the_same_until_it_is_cancelled",
            honest=SlowSheetLoader,
        ),
        Broken(
            LooksOnceWhetherItWasCancelled,
            "Once the request is cancelled, load() raises within a second.",
            "cancelling_stops_a_file_that_is_being_opened",
            honest=SlowSheetLoader,
        ),
        Broken(
            OpensPagesBeforeItLooks,
            "Bounds are looked at before memory is taken, for some pages too.",
            "bounds_are_checked_before_memory_is_allocated",
        ),
        Broken(
            OpensAnything,
            "recognises() tells whether a file is of its formats.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            KnowsNoFile,
            "recognises() knows the files that it opens.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            LooksAnywhere,
            "It tells from the first bytes, not from what stands further on.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(
            KnowsTheContainerOnly,
            "A file of another format is not recognised for what it lies in.",
            "it_recognises_its_own_files_and_no_others",
        ),
        Broken(OpensItToTell, "recognises() opens nothing.", "the_first_bytes_identify_a_file"),
        Broken(
            NeedsEightBytes,
            "A file may be shorter than any beginning.",
            "the_first_bytes_identify_a_file",
            raises=(IndexError,),
        ),
        Broken(
            OpensNothing, "load() returns what the file holds.", "a_file_becomes_parts_of_a_message"
        ),
        Broken(
            PassesOn, "A file does not become a file again.", "a_file_becomes_parts_of_a_message"
        ),
        Broken(
            GivesThoughts,
            "A file holds images, media and text, and no thoughts.",
            "a_file_becomes_parts_of_a_message",
        ),
        Broken(Yields, "load() returns a sequence.", "a_file_becomes_parts_of_a_message"),
        Broken(
            WeighsNothing,
            "A medium says the memory that it takes.",
            "a_file_becomes_parts_of_a_message",
        ),
        Broken(
            DigestsShortly, "A medium's digest is a sha256.", "a_file_becomes_parts_of_a_message"
        ),
        Broken(
            HearsOneSound,
            "Different media have different digests.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            DigestsTheBeginning,
            "A digest is of all that a medium holds.",
            "a_digest_covers_the_whole_file",
        ),
        Broken(
            DrawsAnew,
            "Equal media have equal digests.",
            "digests_depend_on_the_file_alone",
        ),
        Broken(
            KeepsTheLastFile,
            "Its methods are called from several threads at once.",
            "digests_depend_on_the_file_alone",
        ),
        Broken(
            CrashesOnRests,
            "A broken file is refused with a MediaError.",
            "a_file_that_was_cut_is_opened_or_refused",
            raises=(IndexError,),
        ),
        Broken(
            BelievesWhatIsStated,
            "A file may be hostile.",
            "a_file_with_changed_bytes_is_opened_or_refused",
            raises=(zlib.error,),
        ),
        Broken(
            HasNoBounds, "What is over the bounds is refused.", "a_file_over_the_bounds_is_refused"
        ),
        Broken(
            CountsTheFileAlone,
            "max_media_bytes bounds what a file holds, too.",
            "no_bound_is_exceeded",
        ),
        Broken(
            CountsEachSoundAlone,
            "max_media_bytes bounds all media of a file together.",
            "no_bound_is_exceeded",
        ),
        Broken(ShowsOneMore, "No more than max_images are shown.", "no_bound_is_exceeded"),
        Broken(
            MindsNoPixels,
            "The bounds of pictures hold for those of a file.",
            "no_bound_is_exceeded",
        ),
        Broken(
            MindsNoPixelsOfPages,
            "load_pages() keeps to the bounds as load() does.",
            "no_bound_is_exceeded",
        ),
        Broken(
            RefusesWhatJustFits,
            "What is within the bounds is opened.",
            "a_bound_that_just_suffices_refuses_nothing",
            raises=(MediaError,),
        ),
        Broken(
            LeavesTheRestOut,
            "Nothing is left out of what fits.",
            "a_bound_that_just_suffices_refuses_nothing",
        ),
        Broken(
            InflatesFirst,
            "Bounds are looked at before memory is taken.",
            "bounds_are_checked_before_memory_is_allocated",
        ),
        Broken(
            ShowsTheFirstPage,
            "load_pages() returns the pages that were chosen.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            CountsPagesFromZero,
            "Pages are counted from 1.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            LeavesAbsentPagesOut,
            "A page that the file does not have is refused.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            ShowsARange,
            "Pages between those that were chosen are not shown.",
            "chosen_pages_are_those_of_the_whole_file",
        ),
        Broken(
            NumbersNoPages,
            "A page that is an image says so.",
            "a_page_that_is_an_image_says_which_it_is",
        ),
        Broken(
            NumbersWhatItShows,
            "A page has its number in the file, whatever was chosen.",
            "a_page_that_is_an_image_says_which_it_is",
        ),
    ),
)
