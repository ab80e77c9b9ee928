"""The page in a real browser, with a real server: messages, files, answers and conversations."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chromium import NARROW, WIDE, Page, Size, script
from page_server import KEY, PageServer
from PIL import Image
from selenium.webdriver.common.keys import Keys

SIZES = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
TRANSFER = """
const [bytes, name, type] = arguments;
const transfer = new DataTransfer();
transfer.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name, {type}));
"""
DROP = """
for (const kind of ['dragenter', 'dragover', 'drop']) {
  const event = {dataTransfer: transfer, bubbles: true, cancelable: true};
  document.querySelector('main').dispatchEvent(new DragEvent(kind, event));
}
"""
PASTE = """
const event = {clipboardData: transfer, bubbles: true, cancelable: true};
document.getElementById('message').dispatchEvent(new ClipboardEvent('paste', event));
"""


def picture(width: int = 80, height: int = 60, colour: str = "teal") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def picture_file(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(picture())
    return path


def transfer(page: Page, how: str, content: bytes, name: str, kind: str = "image/png") -> None:
    page.run(TRANSFER + how, base64.b64encode(content).decode(), name, kind)


def figures(page: Page) -> dict[str, str]:
    """Return the figures below the last answer."""
    rows = page.all(".answer .figures-of-answer > div")
    return dict(each.text.split("\n") for each in rows)


# Files.


@SIZES
@pytest.mark.parametrize("how", ["drop", "paste", "choice"])
def test_a_picture_reaches_the_model_by(
    browser: Any, server: PageServer, picture_file: Path, how: str, size: Size
) -> None:
    page = Page(browser, server, size)
    if how == "choice":
        page.choose(picture_file)
    else:
        transfer(page, DROP if how == "drop" else PASTE, picture(), "picture.png")
    page.wait(lambda: page.files() == ["picture.png"])
    answer = page.ask("What is this?")
    assert answer.startswith("image 1: 80x60 sha256:")
    assert answer.endswith("What is this?")
    assert page.files() == []


def test_a_document_reaches_the_model_with_all_of_its_pages(page: Page, tmp_path: Path) -> None:
    pytest.importorskip("vlmkit_pdf")
    path = tmp_path / "two pages.pdf"
    first, second = (Image.new("RGB", (200, 100), colour) for colour in ("navy", "gold"))
    first.save(path, append_images=[second], save_all=True)
    page.choose(path)
    page.wait(page.files)
    answer = page.ask("Read it")
    assert answer.count("image ") == 2
    page.click("Inspect")
    titles = page.texts("#inspector h3")
    assert titles == ["two pages.pdf, page 1", "two pages.pdf, page 2"]


def test_a_file_that_no_model_takes_is_refused_with_the_servers_message(
    page: Page, tmp_path: Path
) -> None:
    text, drawing = tmp_path / "notes.txt", tmp_path / "drawing.svg"
    text.write_text("not a picture " * 1000)
    drawing.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page.choose(text, drawing)
    page.wait(lambda: "drawing.svg" in page.find("#composer-problem").text)
    problem = page.find("#composer-problem").text
    assert "notes.txt: the file is a text, which no media loader recognises" in problem
    assert "drawing.svg: the file is an SVG drawing, which no media loader recognises" in problem
    assert page.files() == []


def server_message(server: PageServer, content: bytes) -> str:
    """Return what the server says of an image."""
    import httpx2

    url = "data:image/png;base64," + base64.b64encode(content).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": "mock", "messages": [{"role": "user", "content": [part]}]}
    with httpx2.Client(trust_env=False, timeout=300) as client:
        answer = client.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("size", [(1, 40), (300, 2), (600, 400)])
def test_a_picture_over_a_limit_is_refused_before_it_is_sent_as_the_server_would(
    browser: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    limits = ["--set", "pipeline.images.max_pixels=200000"]
    with PageServer(tmp_path, limits) as server:
        page = Page(browser, server)
        path = tmp_path / "picture.png"
        path.write_bytes(picture(*size))
        page.choose(path)
        page.wait(lambda: page.find("#composer-problem").text)
        said = page.find("#composer-problem").text.removeprefix("picture.png: ")
        assert said in server_message(server, path.read_bytes())
        assert page.files() == []


def test_a_file_over_the_limit_of_bytes_is_refused_as_the_server_would(
    browser: Any, tmp_path: Path
) -> None:
    with PageServer(tmp_path, ["--set", "pipeline.images.max_bytes=100"]) as server:
        page = Page(browser, server)
        path = tmp_path / "picture.png"
        path.write_bytes(picture())
        page.choose(path)
        page.wait(lambda: page.find("#composer-problem").text)
        said = page.find("#composer-problem").text.removeprefix("picture.png: ")
        assert said in server_message(server, path.read_bytes())


def test_a_file_can_be_taken_away_before_it_is_sent(page: Page, picture_file: Path) -> None:
    page.choose(picture_file)
    page.wait(page.files)
    page.click("Remove picture.png")
    assert page.files() == []
    assert page.ask("Hello") == "Hello"


# Answers.


@SIZES
def test_an_answer_is_shown_while_it_comes_and_can_be_stopped(
    browser: Any, server: PageServer, size: Size
) -> None:
    page = Page(browser, server, size)
    page.start(script(text="word ", tokens=30_000, latency_s=0.02))
    page.wait(lambda: page.answers() and "word word" in page.answers()[0])
    assert page.is_running
    page.click("Stop")
    page.wait_for_end()
    assert page.find(".answer .state").text == "Stopped"
    assert page.answers()[0].startswith("word word")
    assert page.ask("Go on") == "Go on"


def test_escape_stops_an_answer(page: Page) -> None:
    page.start(script(text="word ", tokens=30_000, latency_s=0.02))
    page.wait(lambda: page.answers() and "word word" in page.answers()[0])
    page.find("#message").send_keys(Keys.ESCAPE)
    page.wait_for_end()
    assert page.find(".answer .state").text == "Stopped"


@SIZES
def test_an_edited_message_is_asked_anew_and_later_ones_are_removed(
    browser: Any, server: PageServer, size: Size
) -> None:
    page = Page(browser, server, size)
    page.ask("first")
    page.ask("second")
    page.click("Edit message", ".turn:first-child")
    field = page.find(".asked textarea")
    field.send_keys(" of all", Keys.ENTER)
    page.wait(lambda: page.answers() == ["first of all"])
    page.wait_for_end()
    assert page.texts(".question") == ["first of all"]


def test_what_was_removed_can_be_brought_back(page: Page) -> None:
    page.ask("first")
    page.ask("second")
    page.click("Answer again", ".turn:first-child")
    page.wait_for_end()
    assert page.answers() == ["first"]
    assert "1 later message was removed." in page.find("#undo").text
    page.click("Undo")
    assert page.answers() == ["first", "second"]
    page.click("New conversation")
    assert page.answers() == []
    page.click("Undo")
    assert page.answers() == ["first", "second"]
    assert page.ask("third") == "third"
    assert not page.find("#undo").is_displayed()


def test_escape_leaves_a_message_as_it_was(page: Page) -> None:
    page.ask("first")
    page.click("Edit message")
    page.find(".asked textarea").send_keys(" changed", Keys.ESCAPE)
    assert page.texts(".question") == ["first"]


@SIZES
def test_another_answer_takes_the_place_of_one_or_stands_beside_it(
    browser: Any, server: PageServer, size: Size
) -> None:
    page = Page(browser, server, size)
    page.ask("hello")
    before = page.find(".answer")
    page.click("Answer again")
    page.wait_for_end()
    assert page.find(".answer") != before
    page.click("Another answer beside it")
    page.wait_for_end()
    assert page.answers() == ["hello", "hello"]
    left, right = (each.rect for each in page.all(".answer"))
    is_beside = right["x"] > left["x"] and right["y"] == left["y"]
    assert is_beside == (size == WIDE)
    page.click("Remove this answer")
    assert page.answers() == ["hello"]


def test_models_answer_side_by_side(browser: Any, tmp_path: Path) -> None:
    other = """models=[{model = "mock", aliases = ["other"]}]"""
    with PageServer(tmp_path, ["--set", other]) as server:
        page = Page(browser, server, WIDE)
        page.ask("hello")
        page.find("#model").send_keys("other")
        page.click("Another answer beside it")
        page.wait_for_end()
        assert page.texts(".answer .model") == ["mock", "other"]
        page.click("Request as a program", ".answer:last-child")
        assert '"model": "other"' in page.find("#request").text


def test_the_conversation_goes_on_with_the_chosen_answer(page: Page) -> None:
    page.ask("hello")
    page.click("Another answer beside it")
    page.wait_for_end()
    pressed = "return [...document.querySelectorAll('.choice')].map((b) => b.ariaPressed)"
    assert page.run(pressed) == ["true", "false"]
    page.click("Go on with this")
    assert page.run(pressed) == ["false", "true"]
    assert page.ask("and now?") == "and now?"


def test_reasoning_and_calls_can_be_folded_and_results_are_sent(page: Page) -> None:
    page.click("Settings")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    page.run("arguments[0].value = arguments[1]", page.find("[name=tools]"), json.dumps(tools))
    page.click("Use these settings")
    calls = [{"name": "weather", "arguments": {"city": "Köln"}}]
    page.ask(script(reasoning="I need the weather.", text="I look.", calls=calls))
    thoughts = page.find(".reasoning")
    assert not thoughts.get_property("open")
    thoughts.find_element("css selector", "summary").click()
    assert "I need the weather." in thoughts.text
    assert '"city": "Köln"' in page.find(".call pre").text
    page.find(".results textarea").send_keys("sunny")
    page.click("Send results")
    page.wait(lambda: len(page.answers()) == 2)
    page.wait_for_end()
    assert page.answers()[1] == "sunny"


def test_the_figures_of_an_answer_are_those_of_the_server(page: Page, picture_file: Path) -> None:
    page.choose(picture_file)
    page.wait(page.files)
    page.ask(script(text="abc" * 20, reasoning="so", prefill_latency_s=0.2, latency_s=0.01))
    shown = figures(page)
    names = {"Tokens/s", "First text", "First reasoning", "Queue", "Preparation", "Prefill"}
    names |= {"Decode", "Prompt", "Cached", "Images", "Answer", "Reasoning"}
    assert names == {*shown}
    assert float(shown["Tokens/s"]) <= 100
    assert int(shown["Prefill"].split()[0].replace(",", "")) >= 200 or " s" in shown["Prefill"]
    assert shown["Images"] == "4 tok"


def test_the_settings_are_those_of_the_request(page: Page) -> None:
    page.click("Settings")
    page.find("[name=max_tokens]").send_keys("3")
    page.find("[name=system]").send_keys("Be brief.")
    page.run("arguments[0].value = '2'", page.find("[name=answers]"))
    page.click("Use these settings")
    page.ask("a long question")
    assert page.answers() == ["a l", "a l"]
    assert page.text.count("Reached the limit of tokens.") == 2
    page.click("Request as a program")
    shown = page.find("#request").text
    assert '"max_tokens": 3' in shown
    assert "Be brief." in shown


@pytest.mark.parametrize("language", ["curl", "Python"])
def test_the_request_runs_as_a_program(
    page: Page, picture_file: Path, language: str, tmp_path: Path
) -> None:
    hostile = 'it\'s $HOME `id` \\ "q" 😀 \u202e END'
    odd = tmp_path / "it's a $(touch gone).png"
    picture_file.rename(odd)
    page.choose(odd)
    page.wait(page.files)
    answer = page.ask(hostile)
    page.click("Request as a program")
    shown = page.find(f"[aria-label='The request with {language}']")
    program = str(shown.get_property("textContent"))
    command = ["/bin/sh", "-c", program] if language == "curl" else [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = done.stdout.strip()
    if language == "curl":
        said = json.loads(said)["choices"][0]["message"]["content"]
    assert said.splitlines()[0] == answer.splitlines()[0]
    assert said.splitlines()[1] == hostile
    assert not (tmp_path / "gone").exists()


# The inspector.


def pixel(page: Page, label: str, x: float, y: float) -> list[int]:
    """Return red, green and blue of a drawing, at a point in fractions of its size."""
    draw = """
      const [label, x, y] = arguments;
      const canvas = [...document.querySelectorAll('#inspector canvas')].find(
        (each) => each.ariaLabel.startsWith(label));
      const at = [Math.floor(x * canvas.width), Math.floor(y * canvas.height)];
      return [...canvas.getContext('2d').getImageData(...at, 1, 1).data].slice(0, 3);
    """
    return list(page.run(draw, label, x, y))


def facts(page: Page) -> dict[str, str]:
    return dict(each.text.split("\n") for each in page.all("#inspector .facts dl > div"))


def test_the_inspector_shows_what_became_of_a_picture(page: Page, tmp_path: Path) -> None:
    path, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[0x0112] = 6  # shown turned by a quarter
    turned = Image.new("RGB", (120, 90), "navy")
    turned.paste("gold", (0, 0, 60, 90))
    turned.save(path, exif=exif, quality=95)
    page.click("Settings")
    page.find("[name=max_image_tokens]").send_keys("1")
    page.click("Use these settings")
    page.choose(path)
    page.wait(page.files)
    page.ask("What is this?")
    page.click("Inspect")
    seen = facts(page)
    assert seen.pop("Scale")
    stages = {name: seen.pop(name) for name in ("Fetch and check", "Decode", "Preprocess")}
    assert all(each.endswith(" ms") for each in stages.values())
    assert seen.pop("Features") == "computed"
    assert {name: seen[name] for name in seen if name != "Encode"} == {
        "Tokens": "1",
        "File": "120 \u00d7 90",
        "Turned upright": "90 \u00d7 120",
        "Resized to": "22 \u00d7 30",
        "Pictures for the encoder": "1",
    }
    page.find("#inspector summary").click()
    assert page.find("#inspector .tiles tbody").text == "1 0 0 22 30"
    top, bottom = (pixel(page, "The picture as the model sees it", 0.5, y) for y in (0.25, 0.75))
    assert top[2] < 60 < top[0]
    assert bottom[0] < 60 < bottom[2]
    page.click("Close")
    page.click("Answer again")
    page.wait_for_end()
    page.click("Inspect")
    assert facts(page)["Features"] == "from the cache"


def test_boxes_that_an_answer_names_are_drawn_in_pixels_of_the_picture(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "white.png"
    path.write_bytes(picture(200, 100, "white"))
    page.choose(path)
    page.wait(page.files)
    places = [
        {"bbox_2d": [250, 200, 750, 800], "label": "a <b>cat</b>"},
        {"point_2d": [900, 500], "label": "nose"},
    ]
    page.ask(script(text=json.dumps(places)))
    page.click("Inspect")
    named = page.texts("#inspector .places li")
    assert named == ["a <b>cat</b>50, 20, 150, 80", "nose180, 50"]
    label = "The picture with 2 named places"
    white = [255, 255, 255]
    assert pixel(page, label, 0.5, 0.5) == white
    for x, y in ((0.25, 0.5), (0.75, 0.5), (0.5, 0.8), (0.9, 0.5)):
        assert pixel(page, label, x, y) != white
    assert pixel(page, label, 0.22, 0.5) == pixel(page, label, 0.8, 0.5) == white


def test_a_second_picture_needs_no_boxes_and_is_inspected_beside_the_first(
    page: Page, tmp_path: Path
) -> None:
    for name, colour in (("one.png", "teal"), ("two.png", "gold")):
        (tmp_path / name).write_bytes(picture(80, 60, colour))
        page.choose(tmp_path / name)
        page.wait(lambda name=name: name in page.files())
    page.ask("Compare")
    assert page.find(".answer .state").text == ""
    page.click("Inspect")
    assert page.texts("#inspector h3") == ["one.png", "two.png"]
    red = pixel(page, "The picture as the model sees it", 0.5, 0.5)
    assert red == [0, 128, 128]


# Conversations as files.


def saved(page: Page, folder: Path) -> Path:
    """Export the conversation, and return its file."""
    for old in folder.glob("conversation*.json"):
        old.unlink()
    page.click("Export")
    page.wait(lambda: [*folder.glob("conversation*.json")])
    return next(folder.glob("conversation*.json"))


@pytest.fixture
def downloads(browser: Any, tmp_path: Path) -> Path:
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    return tmp_path


@SIZES
def test_an_exported_conversation_can_be_imported(
    browser: Any, server: PageServer, picture_file: Path, downloads: Path, size: Size
) -> None:
    page = Page(browser, server, size)
    page.choose(picture_file)
    page.wait(page.files)
    page.ask("What is this?")
    page.ask(script(text="second", reasoning="why"))
    answers = page.answers()
    file = saved(page, downloads)
    page = Page(browser, server, size)
    assert page.answers() == []
    page.find("#importer").send_keys(str(file))
    page.wait(lambda: page.answers() == answers)
    page.click("Inspect")
    page.wait(lambda: page.find("#inspector h3").text == "picture.png")
    page.click("Close")
    assert page.ask("third").endswith("third")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: text[:-20], "not JSON"),
        (lambda _: "[]", "must be an object"),
        (lambda _: '{"messages": []}', "not a conversation"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "another version"),
        (lambda text: text.replace('"chosen": 0', '"chosen": 7'), "turns[0].chosen"),
        (lambda text: text.replace('"reasoning": ""', '"reasoning": {}'), "reasoning"),
        (lambda text: text.replace('"turns": [', '"turns": [null, '), "turns[0]"),
        (lambda text: text.replace('"results": []', '"results": [{"id": 1}]'), "results[0].id"),
    ],
)
def test_an_invalid_file_changes_nothing(
    page: Page, downloads: Path, change: Any, named: str
) -> None:
    page.ask("hello")
    file = saved(page, downloads)
    broken = downloads / "broken.json"
    broken.write_text(change(file.read_text()))
    page.find("#importer").send_keys(str(broken))
    page.wait(lambda: named in page.find("#composer-problem").text)
    assert page.answers() == ["hello"]
    assert page.ask("again") == "again"


def test_an_exported_conversation_has_no_key(
    browser: Any, keyed: PageServer, downloads: Path
) -> None:
    page = Page(browser, keyed)
    unlock(page, KEY)
    page.ask("hello")
    assert KEY not in saved(page, downloads).read_text()


# Keys and connections.


def unlock(page: Page, key: str) -> None:
    page.find("#key").send_keys(key, Keys.ENTER)
    page.wait(lambda: page.find("#key-problem").text or not page.find("#locked").is_displayed())


@SIZES
def test_a_page_without_a_key_is_empty_and_a_wrong_key_is_refused(
    browser: Any, keyed: PageServer, size: Size
) -> None:
    page = Page(browser, keyed, size)
    assert "asks for an API key" in page.text
    assert "mock" not in page.text
    assert not page.find("#composer").is_displayed()
    unlock(page, "wrong-key-wrong-key-wrong")
    assert "unknown, revoked or expired" in page.find("#key-problem").text
    assert not page.find("#composer").is_displayed()
    unlock(page, KEY)
    assert page.ask("hello") == "hello"


def test_the_key_is_kept_in_memory_and_sent_in_a_header_only(
    browser: Any, keyed: PageServer
) -> None:
    page = Page(browser, keyed)
    unlock(page, KEY)
    page.ask("hello")
    kept = "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie]) +"
    assert KEY not in page.run(f"{kept} document.documentElement.innerHTML + location.href")
    events = [
        json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")
    ]
    sent = [e["params"]["request"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert not [each["url"] for each in sent if KEY in each["url"] + each.get("postData", "")]
    assert KEY not in keyed.log
    page.click("Settings")
    page.click("Forget the API key")
    assert page.find("#locked").is_displayed()
    assert "hello" not in page.text
    page = Page(browser, keyed)
    assert page.find("#locked").is_displayed()


@SIZES
def test_a_server_that_dies_and_returns(browser: Any, tmp_path: Path, size: Size) -> None:
    with PageServer(tmp_path) as server:
        page = Page(browser, server, size)
        page.ask("before")
        page.start(script(text="word ", tokens=30_000, latency_s=0.02))
        page.wait(lambda: "word word" in page.answers()[-1])
        server.stop()
        page.wait_for_end()
        assert "connection to the server broke" in page.text
        assert page.answers()[0] == "before"
        assert page.answers()[1].startswith("word word")
        page.wait(lambda: "does not answer" in page.find("#connection").text)
        server.start()
        page.wait(lambda: not page.find("#connection").is_displayed())
        page.click("Edit message")
        field = page.find(".asked textarea")
        field.clear()
        field.send_keys("after", Keys.ENTER)
        page.wait(lambda: page.answers() == ["before", "after"])


def test_an_engine_that_breaks_an_answer_is_an_error_below_it(page: Page) -> None:
    page.ask(script(text="word ", tokens=50, fail_at_token=20))
    assert page.find(".answer .state").text == "Failed"
    assert "word word" in page.answers()[0]
    assert page.find(".answer .problem").text
    assert page.ask("hello") == "hello"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_page_works_by_name_and_by_address(browser: Any, server: PageServer, host: str) -> None:
    assert Page(browser, server, host=host).ask("hello") == "hello"
