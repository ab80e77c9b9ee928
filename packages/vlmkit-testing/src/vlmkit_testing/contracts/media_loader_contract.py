"""What every media loader must do."""

import itertools
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from vlmkit.errors import MediaError, RequestCancelled
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.media_loader import CancellableMediaLoader, MediaLoader, PagedMediaLoader
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import MediaPart
from vlmkit.types.message import ImagePart, Part, TextPart
from vlmkit.types.pages import Pages

NOTHING = (
    b"",
    b"\0" * 64,
    b"Once upon a time there was a fox.",
    b"\xff" * 3 + b"fox" * 20,
    b"RIFF\x40\0\0\0FOX " + b"\0" * 64,
    b"a fox, and behind it RIFF\x40\0\0\0WAVE \x89PNG\r\n\x1a\n \xff\xd8\xff GIF89a BM",
)
ONE_BYTE = PipelineSettings(max_media_bytes=1, images=ImageLimits(max_bytes=1))
BEGINNING_BYTES = 64
LARGE_BYTES = 300_000
ENDING_BYTES = 128  # after the end of a file
SPARE_BYTES = 2**20
START_S = 0.5  # for a file to be under way
STOP_S = 5.0  # the protocol says one; machines are busy

T = TypeVar("T")
Load = Callable[[PipelineSettings], Seq[Part]]


class MediaLoaderContract:
    """Inherit, override :meth:`make` and :meth:`files`, and run pytest.

    The other methods describe the format further; tests of what they leave out are skipped.

    Attributes:
        num_harmed: how many truncated and changed files are tried of each; use fewer for a loader
            that starts a process for each.
    """

    num_harmed = 96

    def make(self) -> MediaLoader:
        """Return the loader."""
        raise NotImplementedError

    def files(self) -> list[bytes]:
        """Return at least two small files of different content that it opens.

        If files have pages, one file has several.
        """
        raise NotImplementedError

    def nearly_equal(self) -> tuple[bytes, bytes] | None:
        """Return two long files that differ in their last sample alone; None skips the test."""
        return None

    def swelling(self) -> bytes | None:
        """Return a small file that decodes to 16 MiB or more; None if the format has none."""
        return None

    def lengthy(self) -> bytes | None:
        """Return a file that takes ten seconds or more to open; None without one."""
        return None

    def test_it_recognises_its_own_files_and_no_others(self) -> None:
        """The first loader that recognises a file opens it."""
        loader = self.make()
        assert all(loader.recognises(data) is True for data in self.files())
        assert not any(loader.recognises(data) for data in NOTHING)

    def test_the_first_bytes_identify_a_file(self) -> None:
        """A file that is damaged after its first bytes is recognised, too."""
        loader = self.make()
        for data in self.files():
            half = max(len(data) // 2, BEGINNING_BYTES)
            assert loader.recognises(data[:half])
            assert loader.recognises(data[:half] + b"fox" * 1000)
            assert all(loader.recognises(data[:num]) in (True, False) for num in range(half))

    def test_a_file_becomes_parts_of_a_message(self) -> None:
        """Images, media and text in order; a medium has a digest and a size."""
        for data in self.files():
            parts = self._load(data)
            assert isinstance(parts, Seq)
            assert len(parts) > 0
            assert all(isinstance(part, ImagePart | MediaPart | TextPart) for part in parts)
            media = [part.media for part in parts if isinstance(part, MediaPart)]
            assert all(isinstance(medium.digest, bytes) for medium in media)
            assert all(len(medium.digest) == 32 and medium.num_bytes > 0 for medium in media)

    def test_digests_depend_on_the_file_alone(self) -> None:
        """Digests are the same each time, also in concurrent threads."""
        files = self.files()
        contents = [_content(self._load(data)) for data in files]
        assert len(set(contents)) == len(files) > 1
        loader = self.make()
        with ThreadPoolExecutor(4) as pool:
            loaded = pool.map(lambda data: loader.load(data, PipelineSettings()), files * 4)
            assert [_content(parts) for parts in loaded] == contents * 4

    def test_a_digest_covers_the_whole_file(self) -> None:
        """The last sample counts, too: caches compare digests alone."""
        nearly = self.nearly_equal()
        if nearly is None:
            pytest.skip("override nearly_equal() to run this test")
        one, other = (_content(self._load(data)) for data in nearly)
        assert one != other
        loader = self.make()
        found = [_content(loader.load(data, PipelineSettings())) for data in nearly]
        assert found == [one, other], "one is taken for the other, which was opened before"

    def test_files_of_equal_length_and_ends_do_not_mix(self) -> None:
        """A file with another byte in its middle is opened or refused as if it were alone.

        What follows the end of a file makes it one that was never opened before.
        """
        endings = (bytes([number]) * ENDING_BYTES for number in itertools.count())
        tried = 0
        for data in self.files()[:2]:
            middle = range(2 * BEGINNING_BYTES, len(data) - BEGINNING_BYTES)
            ending = next(endings)
            if not middle or self._outcome(data + ending) != self._outcome(data):
                continue
            position = random.Random(0).choice(middle)
            changed = data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]
            loader, expected = self.make(), self._outcome(changed + next(endings))
            ending = next(endings)
            self._outcome(data + ending, loader)
            assert self._outcome(changed + ending, loader) == expected
            tried += 1
        if not tried:
            pytest.skip("its files are short, or may have nothing behind their ends")

    # Files that do harm

    def test_a_file_that_was_cut_is_opened_or_refused(self) -> None:
        """The only exception is a MediaError."""
        for data in self.files():
            nums = (*range(BEGINNING_BYTES), *(len(data) * i // 32 for i in range(32)))
            for num in self._some(nums):
                self._opened_or_refused(data[:num])

    def test_a_file_with_changed_bytes_is_opened_or_refused(self) -> None:
        """At any position: a file may be hostile."""
        for data in self.files():
            beginning = range(min(len(data), BEGINNING_BYTES))
            places = [*beginning, *random.Random(0).sample(range(len(data)), len(beginning))]
            for place, value in self._some([(p, v) for p in places for v in (0, 0x7F, 0xFF)]):
                changed = bytearray(data)
                changed[place] = value
                self._opened_or_refused(bytes(changed))

    def test_a_refused_file_harms_no_other(self) -> None:
        """One loader opens the files of all requests, one after the other and at once."""
        loader, files = self.make(), self.files()
        trials = [(data, PipelineSettings()) for data in files]
        trials += [
            (data[: len(data) * i // 4], PipelineSettings()) for data in files for i in (1, 3)
        ]
        trials += [(data, ONE_BYTE) for data in files]
        loads: list[Callable[..., Seq[Part]]] = [loader.load]
        if isinstance(loader, PagedMediaLoader):
            loads += [partial(loader.load_pages, pages=Pages(((n, n),))) for n in (1, 2)]
        works = [partial(_outcome, load, *trial) for load in loads for trial in trials]
        expected = [work() for work in works]
        assert [work() for work in works] == expected
        order = random.Random(0).sample(range(len(works)), len(works)) * 2
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda number: works[number](), order))
        assert outcomes == [expected[number] for number in order]

    # Bounds

    def test_a_file_over_the_bounds_is_refused(self) -> None:
        """The error is one that clients see."""
        for data in self.files():
            with pytest.raises(MediaError):
                self.make().load(data, ONE_BYTE)

    def test_a_document_over_the_bound_of_files_is_refused(self) -> None:
        """Bounds of single images say nothing of a file with pages."""
        loader = self._paged()
        for data in self.files():
            bounds = PipelineSettings(max_media_bytes=len(data) - 1)
            for load in (loader.load, partial(loader.load_pages, pages=Pages(((1, 1),)))):
                with pytest.raises(MediaError):
                    load(data, bounds=bounds)

    def test_no_bound_is_exceeded(self) -> None:
        """With a bound of one image, pixel or byte less, a file is reduced or refused."""
        for _, load in self._loads():
            for bounds in _tight(load(PipelineSettings()), less=1):
                try:
                    parts = load(bounds)
                except MediaError:
                    continue
                images = [part.image for part in parts if isinstance(part, ImagePart)]
                sizes = [part.media.num_bytes for part in parts if isinstance(part, MediaPart)]
                assert len(images) <= bounds.max_images
                assert sum(sizes) <= bounds.max_media_bytes
                most = bounds.images.max_pixels
                assert all(image.width * image.height <= most for image in images)

    def test_a_bound_that_just_suffices_refuses_nothing(self) -> None:
        """A file at the bound is opened unchanged."""
        for file_bytes, load in self._loads():
            whole = load(PipelineSettings())
            for bounds in _tight(whole, least_bytes=file_bytes):
                assert _content(load(bounds)) == _content(whole)

    def test_pages_share_the_bound_of_bytes(self) -> None:
        """A bound that suffices for each of two pages does not for both, if their content counts.

        The content of a page counts if a bound of the size of the file does not suffice for it.
        """
        loader, most, num_tried = self._paged(), PipelineSettings().max_media_bytes, 0
        for data in self.files():
            opens = partial(_opens, loader, data)
            present = itertools.takewhile(partial(opens, most), range(1, 10))
            beyond = itertools.filterfalse(partial(opens, len(data)), present)
            counted = list(itertools.islice(beyond, 2))
            if len(counted) < 2:
                continue
            bound = len(data)
            while not all(opens(bound, number) for number in counted):
                bound += bound // 2  # so that one page needs two thirds of the bound
            if not any(opens(bound // 3, number) for number in counted):
                assert not opens(bound, *counted), f"two pages exceed {bound} bytes"
                num_tried += 1
        if not num_tried:
            pytest.skip("no two pages of its files count beside the file")

    def test_bounds_are_checked_before_memory_is_allocated(self) -> None:
        """A small file may decode to more than the machine's memory."""
        data = self.swelling()
        if data is None:
            pytest.skip("override swelling() to run this test")
        loader, bounds = self.make(), PipelineSettings(max_media_bytes=len(data) + SPARE_BYTES)
        tracemalloc.start()
        try:
            with pytest.raises(MediaError):
                loader.load(data, bounds)
            if isinstance(loader, PagedMediaLoader):
                with pytest.raises(MediaError):
                    loader.load_pages(data, Pages(((1, 1),)), bounds)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * bounds.max_media_bytes

    # Cancellation

    def test_a_loader_for_a_request_opens_the_same_until_it_is_cancelled(self) -> None:
        """After that it opens nothing, and loaders of other requests continue."""
        loader = self._cancellable()
        one, other = Cancellation(), Cancellation()
        cancelled, going_on = loader.for_request(one), loader.for_request(other)
        for data in (*self.files(), *NOTHING):
            assert cancelled.recognises(data) == loader.recognises(data)
        whole = [_content(loader.load(data, PipelineSettings())) for data in self.files()]
        for opening in (cancelled, going_on):
            found = [_content(opening.load(data, PipelineSettings())) for data in self.files()]
            assert found == whole
        one.cancel()
        for data in self.files():
            with pytest.raises(RequestCancelled):
                cancelled.load(data, PipelineSettings())
            if isinstance(loader, PagedMediaLoader):
                assert isinstance(cancelled, PagedMediaLoader), "it lost its pages"
                with pytest.raises(RequestCancelled):
                    cancelled.load_pages(data, Pages(((1, 1),)), PipelineSettings())
        for opening in (loader, going_on):
            found = [_content(opening.load(data, PipelineSettings())) for data in self.files()]
            assert found == whole, "a cancellation of one request is one of another"

    def test_cancelling_stops_a_file_that_is_being_opened(self) -> None:
        """Another thread cancels it, and nothing that it started continues."""
        loader, data = self._cancellable(), self.lengthy()
        if data is None:
            pytest.skip("override lengthy() to run this test")
        cancellation = Cancellation()
        raised: list[BaseException] = []
        before = set(threading.enumerate())

        def load() -> None:
            try:
                loader.for_request(cancellation).load(data, PipelineSettings())
            except BaseException as error:  # noqa: BLE001 - it is looked at below
                raised.append(error)

        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        thread.join(START_S)
        assert thread.is_alive(), "lengthy() must return a file that takes long"
        cancellation.cancel()
        thread.join(STOP_S)
        assert not thread.is_alive(), f"it goes on for over {STOP_S:g} s"
        assert [type(error) for error in raised] == [RequestCancelled]
        assert set(threading.enumerate()) <= before, "a thread goes on"

    # Pages

    def test_chosen_pages_are_those_of_the_whole_file(self) -> None:
        """Single pages or several; a page that the file does not have is refused."""
        loader = self._paged()
        nums = []
        for data in self.files():
            whole = _content(self._load(data))
            each = list(self._each_page(loader, data))
            assert tuple(part for page in each for part in page) == whole
            nums.append(len(each))
            for numbers in _selections(len(each)):
                pages = Pages(tuple((number, number) for number in numbers))
                parts = loader.load_pages(data, pages, PipelineSettings())
                assert _content(parts) == tuple(p for n in numbers for p in each[n - 1])
            parts = loader.load_pages(data, Pages(((1, len(each)),)), PipelineSettings())
            assert _content(parts) == whole
            for absent in ((len(each) + 1,) * 2, (len(each), len(each) + 1), (999_999,) * 2):
                with pytest.raises(MediaError):
                    loader.load_pages(data, Pages((absent,)), PipelineSettings())
        assert max(nums) > 1, "files() must return one of several pages"

    def test_a_page_that_is_an_image_says_which_it_is(self) -> None:
        """Its number in the file, from 1, which answers state."""
        loader = self._paged()
        for data in self.files():
            parts = [part for part in self._load(data) if isinstance(part, ImagePart)]
            pages = [part.page or 0 for part in parts]
            assert pages == sorted(pages)
            for number in {*pages}:
                assert number > 0
                chosen = loader.load_pages(data, Pages(((number, number),)), PipelineSettings())
                assert {p.page for p in chosen if isinstance(p, ImagePart)} == {number}

    # Helpers

    def _load(self, data: bytes) -> Seq[Part]:
        return self.make().load(data, PipelineSettings())

    def _loads(self) -> Iterator[tuple[int, Load]]:
        """Yield the size of each file with a function that opens it, its first page or all pages.

        The first also comes as a large file, if the format allows something behind its end.
        """
        loader, first = self.make(), Pages(((1, 1),))
        files = list(self.files())
        longer = files[0] + bytes(LARGE_BYTES)
        if self._outcome(longer) == self._outcome(files[0]):
            yield len(longer), partial(loader.load, longer)
        for data in files:
            yield len(data), partial(loader.load, data)
            if isinstance(loader, PagedMediaLoader):
                yield len(data), partial(loader.load_pages, data, first)
                every = Pages(((1, len(list(self._each_page(loader, data)))),))
                yield len(data), partial(loader.load_pages, data, every)

    def _outcome(self, data: bytes, loader: MediaLoader | None = None) -> object:
        """Return what distinguishes the content of a file, or the type of its error."""
        try:
            return _content((loader or self.make()).load(data, PipelineSettings()))
        except MediaError as error:
            return type(error)

    def _some(self, trials: Seq[T]) -> Seq[T]:
        """Return a fixed sample of as many as are tried."""
        num = min(self.num_harmed, len(trials))
        return random.Random(0).sample(trials, num)

    def _opened_or_refused(self, data: bytes) -> None:
        try:
            parts = self._load(data)
        except MediaError as error:
            assert str(error)
        else:
            assert len(parts) > 0

    def _cancellable(self) -> CancellableMediaLoader:
        loader = self.make()
        if not isinstance(loader, CancellableMediaLoader):
            pytest.skip("it is not cancellable")
        return loader

    def _paged(self) -> PagedMediaLoader:
        loader = self.make()
        if not isinstance(loader, PagedMediaLoader):
            pytest.skip("this loader's files have no pages")
        return loader

    def _each_page(
        self, loader: PagedMediaLoader, data: bytes
    ) -> Iterator[tuple[tuple[str, object], ...]]:
        """Yield the content of each page."""
        for number in range(1, 1000):
            try:
                parts = loader.load_pages(data, Pages(((number, number),)), PipelineSettings())
            except MediaError:
                assert number > 1
                return
            yield _content(parts)


def _outcome(load: Callable[..., Seq[Part]], data: bytes, bounds: PipelineSettings) -> object:
    """Return what distinguishes the content of a file, or the type of its error."""
    try:
        return _content(load(data, bounds=bounds))
    except MediaError as error:
        return type(error)


def _opens(loader: PagedMediaLoader, data: bytes, bound: int, *numbers: int) -> bool:
    """Return whether pages of a file are opened within a bound of bytes."""
    pages = Pages(tuple((number, number) for number in numbers))
    try:
        loader.load_pages(data, pages, PipelineSettings(max_media_bytes=bound))
    except MediaError:
        return False
    return True


def _selections(num_pages: int) -> list[tuple[int, ...]]:
    """Return selections of some pages: all pairs and triples of the first, and the ends."""
    first = range(1, min(num_pages, 5) + 1)
    some = [each for num in (2, 3) for each in itertools.combinations(first, num)]
    return [*some, (1, num_pages)] if num_pages > 1 else some


def _tight(parts: Seq[Part], less: int = 0, least_bytes: int = 0) -> Iterator[PipelineSettings]:
    """Yield bounds that are too low for some parts by an amount, one bound at a time."""
    images = [part.image for part in parts if isinstance(part, ImagePart)]
    num_bytes = sum(part.media.num_bytes for part in parts if isinstance(part, MediaPart))
    if len(images) > less:
        yield PipelineSettings(max_images=len(images) - less)
    if images:
        most = max(image.width * image.height for image in images) - less
        yield PipelineSettings(images=msgspec.structs.replace(ImageLimits(), max_pixels=most))
    if num_bytes:
        yield PipelineSettings(max_media_bytes=max(num_bytes - less, least_bytes))


def _content(parts: Seq[Part]) -> tuple[tuple[str, object], ...]:
    """Return what distinguishes parts."""
    return tuple(_told(part) for part in parts)


def _told(part: Part) -> tuple[str, object]:
    if isinstance(part, ImagePart):
        return "image", part.image.digest
    if isinstance(part, MediaPart):
        return part.kind, part.media.digest
    return "text", part.text if isinstance(part, TextPart) else repr(part)
