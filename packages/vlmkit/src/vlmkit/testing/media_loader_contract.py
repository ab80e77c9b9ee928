"""What every media loader must do."""

from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor

import pytest

from vlmkit.ask.media import FilePart, MediaPart
from vlmkit.ask.message import ImagePart, Part, TextPart
from vlmkit.ask.pages import Pages
from vlmkit.errors import RequestError
from vlmkit.seams.media_loader import MediaLoader, PagedMediaLoader
from vlmkit.settings.images import ImageLimits
from vlmkit.settings.pipeline import PipelineSettings

NOTHING = (b"", b"\0" * 64, b"Once upon a time there was a fox.", b"\xff" * 3 + b"fox" * 20)
ONE_BYTE = PipelineSettings(max_media_bytes=1, images=ImageLimits(max_bytes=1))


class MediaLoaderContract:
    """Inherit, override :meth:`make` and :meth:`files`, and run pytest."""

    def make(self) -> MediaLoader:
        """Return the loader."""
        raise NotImplementedError

    def files(self) -> list[bytes]:
        """Return at least two small files that it opens, of different content."""
        raise NotImplementedError

    def test_it_recognises_its_own_files_and_no_others(self) -> None:
        """The first loader that recognises a file opens it."""
        loader = self.make()
        assert all(loader.recognises(data) for data in self.files())
        assert not any(loader.recognises(data) for data in NOTHING)

    def test_a_file_becomes_parts_of_a_message(self) -> None:
        """None of which is a file again; a medium says what tells it apart, and its size."""
        for data in self.files():
            parts = self._load(data)
            assert len(parts) > 0
            assert not any(isinstance(part, FilePart) for part in parts)
            media = [part.media for part in parts if isinstance(part, MediaPart)]
            assert all(isinstance(medium.digest, bytes) for medium in media)
            assert all(len(medium.digest) == 32 and medium.num_bytes > 0 for medium in media)

    def test_what_is_opened_tells_files_apart_and_nothing_else(self) -> None:
        """Digests are the same each time, also when several threads ask at once."""
        files = self.files()
        contents = [_content(self._load(data)) for data in files]
        assert len(set(contents)) == len(files) > 1
        loader = self.make()
        with ThreadPoolExecutor(4) as pool:
            loaded = pool.map(lambda data: loader.load(data, PipelineSettings()), files * 4)
            assert [_content(parts) for parts in loaded] == contents * 4

    @pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
    def test_a_file_that_was_cut_is_opened_or_refused(self, kept: float) -> None:
        """A RequestError is an answer; any other exception is a crash."""
        for data in self.files():
            try:
                self._load(data[: int(len(data) * kept)])
            except RequestError as error:
                assert str(error)

    def test_what_is_over_the_bounds_is_refused(self) -> None:
        """With an error that the client gets to see."""
        for data in self.files():
            with pytest.raises(RequestError):
                self.make().load(data, ONE_BYTE)

    def test_chosen_pages_are_those_of_the_whole_file(self) -> None:
        """And a page that is not there is refused."""
        loader = self.make()
        if not isinstance(loader, PagedMediaLoader):
            pytest.skip("this loader's files have no pages")
        for data in self.files():
            whole = _content(self._load(data))
            first = _content(loader.load_pages(data, Pages(((1, 1),)), PipelineSettings()))
            assert 0 < len(first) <= len(whole)
            assert first == whole[: len(first)]
            with pytest.raises(RequestError):
                loader.load_pages(data, Pages(((999_999, 999_999),)), PipelineSettings())

    def _load(self, data: bytes) -> Seq[Part]:
        return self.make().load(data, PipelineSettings())


def _content(parts: Seq[Part]) -> tuple[tuple[str, object], ...]:
    """Return what tells parts apart."""
    return tuple(_told(part) for part in parts)


def _told(part: Part) -> tuple[str, object]:
    if isinstance(part, ImagePart):
        return "image", part.image.digest
    if isinstance(part, MediaPart):
        return part.kind, part.media.digest
    return "text", part.text if isinstance(part, TextPart) else repr(part)
