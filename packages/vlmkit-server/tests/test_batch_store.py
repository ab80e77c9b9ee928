"""The store of batches under random operations, restarts and full disks."""

import asyncio
import errno
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vlmkit_server.apis.batches.input_lines import Check
from vlmkit_server.apis.batches.output_lines import Used
from vlmkit_server.apis.batches.records import Done
from vlmkit_server.apis.batches.store import BatchStore
from vlmkit_server.apis.batches.wire import BatchErrors, BatchRequest
from vlmkit_server.http.caller import Caller
from vlmkit_server.http.errors import NotStored, Unavailable
from vlmkit_server.settings.server import DataSettings
from vlmkit_server.storage.data_folder import Folder
from vlmkit_server.storage.disk_store import FilesOnDisk

CHAT = "/v1/chat/completions"
OWNERS = (b"one", b"two")
NUM_LINES = 6
pick = st.integers(0, 20)


def line(number):
    return json.dumps({"custom_id": f"{number}", "url": CHAT, "body": {}}).encode() + b"\n"


class Stores(RuleBasedStateMachine):
    """A store beside a model of its content: the state of each line of each batch."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = tempfile.mkdtemp()
        self.fails = False
        self.batches = {}  # by batch id: owner, number, and lines by number
        self.open()

    def open(self):
        self.folder = Folder(DataSettings(folder=self.root))
        self.files = FilesOnDisk(self.folder)
        self.files.restore()
        self.store = BatchStore(self.folder)
        write = self.folder.write

        def written(name, start, content, *, durably=True):
            if self.fails:
                write(name, start, content[: len(content) // 2], durably=durably)
                raise OSError(errno.ENOSPC, "there is no room")
            write(name, start, content, durably=durably)

        self.folder.write = written

    def do(self, work):
        return self.loop.run_until_complete(work)

    def teardown(self):
        self.folder.close()
        self.loop.close()
        shutil.rmtree(self.root)

    def chosen(self, which, *, is_over=False):
        found = [b for b in self.batches.values() if b["is_over"] == is_over]
        return found[which % len(found)] if found else None

    @rule(owner=st.sampled_from(OWNERS))
    def create(self, owner):
        async def work():
            incoming = self.files.incoming(owner)
            content = b"".join(map(line, range(NUM_LINES)))
            incoming.count(len(content))
            await incoming.write(content)
            await incoming.end()
            file = await self.files.keep(
                incoming, filename="x", purpose="batch", media_type="x", lives_s=None
            )
            request = BatchRequest(file.id, CHAT, "24h")
            body = await self.store.create(request, Caller(owner, "tenant"))
            batch = await self.store.lifecycle.opened(body.id)
            check = Check(self.folder.path(file.id), CHAT, max_lines=100, max_line_bytes=1000)
            is_first = True
            for spans in check.spans():
                assert await self.store.lines.add_lines(batch.number, spans, is_first=is_first)
                is_first = False
            await self.store.lifecycle.begin(batch.id, check.num_lines, check.model)
            return batch

        self.fails = False
        batch = self.do(work())
        self.batches[batch.id] = {
            "batch": batch,
            "lines": dict.fromkeys(range(1, NUM_LINES + 1), "waiting"),
            "is_over": False,
            "postponed": dict.fromkeys(range(1, NUM_LINES + 1), 0),
            "attempts": dict.fromkeys(range(1, NUM_LINES + 1), 0),
        }

    @rule(which=pick, num=st.integers(1, 4))
    def take(self, which, num):
        if (own := self.chosen(which)) is None:
            return
        lines = self.do(self.store.lines.take(own["batch"].number, num))
        waiting = [n for n, state in own["lines"].items() if state == "waiting"]
        waiting.sort(key=lambda n: (own["postponed"][n], n))
        assert [each.number for each in lines] == waiting[:num]
        for each in lines:
            assert each.attempts == own["attempts"][each.number]
            assert self.folder.read(own["batch"].input_id, each.start, each.num_bytes) == line(
                each.number - 1
            )
            own["lines"][each.number] = "asked"
            own["attempts"][each.number] += 1

    @rule(which=pick, line_number=pick, counts=st.booleans())
    def give_back(self, which, line_number, counts):
        own = self.chosen(which)
        lines_in_progress = [
            n for n, state in (own or {"lines": {}})["lines"].items() if state == "asked"
        ]
        if lines_in_progress:
            number = lines_in_progress[line_number % len(lines_in_progress)]
            self.do(self.store.lines.release(own["batch"].number, number, counts=counts))
            own["lines"][number] = "waiting"
            own["attempts"][number] -= not counts
            own["postponed"][number] += 1

    @rule(which=pick, numbers=st.lists(st.tuples(st.integers(1, NUM_LINES), st.booleans())))
    def finish(self, which, numbers):
        """Finish some lines; a finished line must not be written again."""
        if (own := self.chosen(which)) is None:
            return
        numbers = dict(numbers)
        done = [
            Done(own["batch"].number, n, b"%d:%d\n" % (n, is_error), is_error, Used(1, 0, 2, 0))
            for n, is_error in numbers.items()
        ]
        try:
            self.do(self.store.lines.finish(done))
        except Unavailable:
            return
        for n, is_error in numbers.items():
            if own["lines"][n] in ("waiting", "asked"):
                own["lines"][n] = "failed" if is_error else "completed"

    @rule(fails=st.booleans())
    def fill_the_disk(self, fails):
        self.fails = fails

    @rule(which=pick)
    def cancel(self, which):
        if (own := self.chosen(which)) is not None:
            batch = own["batch"]
            body = self.do(self.store.cancel(batch.id, batch.owner))
            assert body.status in ("cancelling", "finalizing")

    @precondition(lambda self: not self.fails)
    @rule(which=pick)
    def end(self, which):
        if (own := self.chosen(which)) is None:
            return
        batch = own["batch"]
        self.do(self.store.lifecycle.finalize(batch, "expired"))
        left = self.do(self.store.lines.left(batch.number, 100))
        assert {each.number for each in left} == {
            n for n, state in own["lines"].items() if state in ("waiting", "asked")
        }
        entries = [Done(batch.number, each.number, b"%d:1\n" % each.number, True) for each in left]
        self.do(self.store.lines.finish(entries))
        self.do(self.store.lifecycle.end(batch, "expired"))
        for each in left:
            own["lines"][each.number] = "failed"
        own["is_over"] = True
        body = self.do(self.store.find(batch.id, batch.owner))
        for file_id, state in (
            (body.output_file_id, "completed"),
            (body.error_file_id, "failed"),
        ):
            numbers = [n for n, each in own["lines"].items() if each == state]
            assert (file_id is None) == (not numbers)
            if file_id is not None:
                file = self.do(self.files.find(file_id, batch.owner))
                content = self.folder.path(file_id).read_bytes()
                assert file.num_bytes == len(content)
                found = [int(each.split(b":")[0]) for each in content.splitlines()]
                assert sorted(found) == numbers

    @rule()
    def restart(self):
        self.folder.close()
        self.fails = False
        self.open()
        open_batches = self.do(self.store.lifecycle.restore())
        ongoing = {b["batch"].id for b in self.batches.values() if not b["is_over"]}
        assert {each.id for each in open_batches} == ongoing
        for own in self.batches.values():
            for n, state in own["lines"].items():
                if state == "asked":
                    own["lines"][n] = "waiting"

    @invariant()
    def listed_states_are_correct(self):
        for batch_id, own in self.batches.items():
            batch = own["batch"]
            states = list(own["lines"].values())
            body = self.do(self.store.find(batch_id, batch.owner))
            counts = body.request_counts
            assert (counts.total, counts.completed, counts.failed) == (
                NUM_LINES,
                states.count("completed"),
                states.count("failed"),
            )
            other = OWNERS[batch.owner == OWNERS[0]]
            with pytest.raises(NotStored):
                self.do(self.store.find(batch_id, other))
        on_disk = sum(
            max(4096, file.num_bytes)
            for owner in OWNERS
            for file in self.do(self.files.all_of(owner))
        )
        ongoing = 2 * 4096 * sum(not own["is_over"] for own in self.batches.values())
        assert self.folder.num_bytes == on_disk + ongoing


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


def test_a_batch_with_an_invalid_file_takes_no_space(tmp_path):
    async def work():
        folder = Folder(DataSettings(folder=str(tmp_path)))
        store = BatchStore(folder)
        body = await store.create(BatchRequest("x", CHAT, "1h"), Caller(b"one", ""))
        assert folder.num_bytes == 8192
        await store.lifecycle.fail(await store.lifecycle.opened(body.id), BatchErrors([]))
        assert folder.num_bytes == 0
        folder.close()

    asyncio.run(work())


def test_the_input_check_never_crashes_whatever_the_file_contains(tmp_path):
    from hypothesis import given

    path = Path(tmp_path, "lines")
    pieces = [
        b"\n",
        b"\r",
        b" ",
        line(1),
        line(2),
        b"{",
        b"\xff",
        b"\xef\xbb\xbf",
        b'{"custom_id":',
    ]

    @given(st.lists(st.sampled_from(pieces), max_size=12).map(b"".join))
    def read(content):
        path.write_bytes(content)
        check = Check(path, CHAT, max_lines=5, max_line_bytes=60)
        line_spans = [line_span for lot in check.spans() for line_span in lot]
        if not check.errors:
            assert len(line_spans) == check.num_lines > 0
            for line_span in line_spans:
                json.loads(content[line_span.start : line_span.start + line_span.num_bytes])

    read()
