"""The reference page and the guide match the code."""

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields
from running_server import running

from vlmkit.kit.tool_call_formats import CHANNELS, FORMATS
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.apis.anthropic_messages.wire import CountRequest, DocumentBlock, MessagesRequest
from vlmkit_server.apis.batches.message_batches_wire import (
    MessageBatchesQuery,
    MessageBatchRequest,
    OneMessage,
)
from vlmkit_server.apis.batches.wire import BatchBody, BatchesQuery, BatchRequest
from vlmkit_server.apis.files.wire import FileForm, FilesQuery
from vlmkit_server.apis.openai_chat.wire import ChatRequest, NamedFile
from vlmkit_server.apis.openai_responses.wire import InputTokensRequest, Item, ResponsesRequest
from vlmkit_server.settings.server import (
    DataSettings,
    FilesSettings,
    ResponsesSettings,
    ServerSettings,
)

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference/http.md").read_text()
GUIDE = (DOCS / "how-to/serve.md").read_text()
GUIDE_TO_BATCHES = (DOCS / "how-to/serve-files-and-batches.md").read_text()


@pytest.mark.parametrize("name", ChatRequest.__struct_fields__)
def test_every_field_of_a_chat_request_is_in_the_reference(name):
    assert re.search(rf"`{name}[`:]", REFERENCE)


@pytest.mark.parametrize("name", MessagesRequest.__struct_fields__ + CountRequest.__struct_fields__)
def test_every_field_of_anthropics_api_is_in_the_reference(name):
    assert re.search(rf"`{name}[`:]", REFERENCE)


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            *ResponsesRequest.__struct_fields__,
            *InputTokensRequest.__struct_fields__,
            *Item.__struct_fields__,
        }
    ),
)
def test_every_field_of_the_responses_api_is_in_the_reference(name):
    assert re.search(rf"`{name}[`:.]", REFERENCE)


@pytest.mark.parametrize(
    "name",
    [
        *NamedFile.__struct_fields__,
        *DocumentBlock.__struct_fields__,
        *(field.encode_name for field in fields(FileForm)),
        *FilesQuery.__struct_fields__,
        *BatchRequest.__struct_fields__,
        *BatchBody.__struct_fields__,
        *BatchesQuery.__struct_fields__,
        *MessageBatchRequest.__struct_fields__,
        *OneMessage.__struct_fields__,
        *MessageBatchesQuery.__struct_fields__,
    ],
)
def test_every_field_of_files_and_batches_is_in_the_reference(name):
    assert f"`{name}`" in REFERENCE


@pytest.mark.parametrize("name", [*FORMATS, *CHANNELS])
def test_every_tool_call_format_is_in_the_reference(name):
    assert f"\n| `{name}` | `" in REFERENCE


@pytest.mark.parametrize(
    "name",
    ServerSettings.__struct_fields__
    + FetchSettings.__struct_fields__
    + FilesSettings.__struct_fields__
    + ResponsesSettings.__struct_fields__
    + DataSettings.__struct_fields__,
)
def test_every_setting_is_in_the_guide(name):
    assert f"`{name}`" in GUIDE + GUIDE_TO_BATCHES


def test_the_example_config_of_the_guide_is_valid():
    import tomllib

    table = tomllib.loads(re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[0])
    assert msgspec.convert(table["server"], ServerSettings)
    assert msgspec.convert(table["fetch"], FetchSettings).enabled


def test_the_client_programs_of_the_guide_work(tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 6)).save("shapes.png")
    first, second, *_ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    with running() as server:
        program = (first + second + "client.close()\n").replace('"demo"', '"mock"')
        exec(program.replace("http://127.0.0.1:8000", server.url), {})
    assert capsys.readouterr().out.startswith("Helloimage 1: 8x6")


def test_the_batch_program_of_the_guide_works(tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 6)).save("shapes.png")
    first, second, *_ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    others = re.findall(r"```python\n(.*?)```", GUIDE_TO_BATCHES, re.DOTALL)
    (batch,) = (each for each in others if "client.batches" in each)
    with running(data=DataSettings(folder="vlmkit-data")) as server:
        program = (first + second + batch + "client.close()\n").replace('"demo"', '"mock"')
        exec(program.replace("http://127.0.0.1:8000", server.url), {})
    output = capsys.readouterr().out
    assert all(f"question {n} image 1: 8x6" in output for n in range(2))
