"""The page for everyone: axe reports nothing, and a keyboard is enough."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import NARROW, WIDE, Page, Size, script
from page_server import KEY, PageServer
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

AXE = Path(os.environ.get("AXE_FOLDER", ""), "node_modules/axe-core/axe.min.js")
SIZES = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
TEXT = """# A heading
### A deep heading
Some **bold** text with `code`, a [link](https://example.com/a) and \u202ehidden\u202c letters.

- [x] one
  - two

| name | count |
|---|---:|
| circle | 3 |

> A quote

```python
x = 1
```
"""
RUN_AXE = """
const done = arguments[0];
const rules = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
axe.run(document, {runOnly: rules}).then((result) => done(result.violations.map(
  ({id, nodes}) => [id, nodes.map((node) => node.html + node.failureSummary)])));
"""


@pytest.fixture
def axe() -> Callable[[Page], Any]:
    """A function that returns what axe reports of a page as it is now."""
    if not AXE.is_file():
        pytest.skip("no axe-core here (AXE_FOLDER names the folder where npm installed it)")
    source = AXE.read_text(encoding="utf-8")

    def violations(page: Page) -> Any:
        page.resize(5000)  # or the fixed message box would cover a part of some button
        page.run(source)
        return page.driver.execute_async_script(RUN_AXE)

    return violations


def use_theme(page: Page, theme: str) -> None:
    page.run("document.documentElement.dataset.theme = arguments[0]", theme)


@pytest.mark.parametrize(
    ("theme", "size"),
    [
        ("light", NARROW),
        ("dark", WIDE),
        pytest.param("light", WIDE, marks=pytest.mark.slow),
        pytest.param("dark", NARROW, marks=pytest.mark.slow),
    ],
)
def test_axe_reports_nothing(
    browser: Any, server: PageServer, tmp_path: Path, axe: Any, size: Size, theme: str
) -> None:
    page = Page(browser, server, size)
    use_theme(page, theme)
    assert axe(page) == []
    path = tmp_path / "picture.png"
    Image.new("RGB", (80, 60), "teal").save(path)
    page.choose(path)
    page.wait(page.files)
    assert axe(page) == []
    page.ask(script(text=TEXT, reasoning="I look."))
    page.click("Another answer beside it")
    page.wait_for_end()
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert axe(page) == []
    for name in ("Inspect", "Request as a program", "Settings"):
        page.click(name)
        assert axe(page) == [], name
        page.click("Close", "dialog[open]")
    page.click("Edit message")
    assert axe(page) == []


@SIZES
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_reports_nothing_where_a_key_is_asked_for_or_an_answer_fails(
    browser: Any, server: PageServer, keyed: PageServer, axe: Any, size: Size, theme: str
) -> None:
    page = Page(browser, keyed, size)
    use_theme(page, theme)
    page.find("#key").send_keys("x" * 20, Keys.ENTER)
    page.wait(lambda: page.find("#key-problem").text)
    assert axe(page) == []
    page = Page(browser, server, size)
    use_theme(page, theme)
    page.ask(script(text="word ", tokens=9, fail_at_token=3))
    assert axe(page) == []


class Keyboard:
    """Moves the focus by keys, and checks that it can be seen."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        ActionChains(self.page.driver).send_keys(*keys).perform()

    @property
    def focus(self) -> str:
        """The name of the element with the focus, which must be in sight and marked."""
        element = self.page.driver.switch_to.active_element
        if element.tag_name == "body":
            return ""
        is_marked = self.page.run(
            "const e = arguments[0]; return e.matches(':focus-visible') && (e.matches('textarea')"
            " || e.matches('.visually-hidden') || getComputedStyle(e).outlineStyle !== 'none')",
            element,
        )
        assert is_marked, element.get_attribute("outerHTML")
        return element.accessible_name

    def go_to(self, name: str) -> None:
        """Press TAB until an element has the focus."""
        for _ in range(100):
            if self.focus == name:
                return
            self.press(Keys.TAB)
        pytest.fail(f"TAB does not reach {name!r}: {self.page.text}")


@SIZES
def test_a_keyboard_is_enough(browser: Any, server: PageServer, size: Size) -> None:
    page = Page(browser, server, size)
    keyboard = Keyboard(page)
    keyboard.press(Keys.TAB)
    assert keyboard.focus == "Skip to the message"
    keyboard.press(Keys.ENTER)
    page.wait(lambda: page.run("return document.activeElement.id") == "message")
    keyboard.press("first", Keys.ENTER)
    page.wait(lambda: page.answers() == ["first"])
    page.wait_for_end()
    keyboard.go_to("Edit message")
    keyboard.press(Keys.ENTER, " changed", Keys.ENTER)
    page.wait(lambda: page.answers() == ["first changed"])
    page.wait_for_end()
    keyboard.go_to("Another answer beside it")
    keyboard.press(Keys.SPACE)
    page.wait(lambda: page.answers() == ["first changed"] * 2)
    page.wait_for_end()
    keyboard.go_to("Go on with this")
    keyboard.press(Keys.ENTER)
    assert page.run("return document.querySelectorAll('.is-chosen').length") == 1
    keyboard.go_to("Request as a program")
    keyboard.press(Keys.ENTER)
    keyboard.go_to("Copy Python")
    keyboard.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog[open]"))
    assert keyboard.focus == "Request as a program"
    keyboard.go_to("Settings")
    keyboard.press(Keys.ENTER)
    keyboard.go_to("Most tokens of an answer")
    keyboard.press("2", Keys.ENTER)
    page.wait(lambda: not page.all("dialog[open]"))
    keyboard.go_to("Message")
    keyboard.press("second", Keys.ENTER)
    page.wait(lambda: page.answers()[-1] == "se")
    for name in ("Model", "New conversation", "Export", "Import", "Add files", "Send"):
        keyboard.go_to(name)


def test_escape_stops_an_answer_and_shift_enter_begins_a_line(
    browser: Any, server: PageServer
) -> None:
    page = Page(browser, server)
    keyboard = Keyboard(page)
    keyboard.go_to("Message")
    shifted = ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER)
    keyboard.press("one")
    shifted.key_up(Keys.SHIFT).perform()
    keyboard.press("two", Keys.ENTER)
    page.wait(lambda: page.answers() == ["one\ntwo"])
    page.wait_for_end()
    page.start(script(text="word ", tokens=30_000, latency_s=0.02))
    page.wait(lambda: "word word" in page.answers()[-1])
    keyboard.press(Keys.ESCAPE)
    page.wait_for_end()
    assert page.all(".answer .state")[-1].text == "Stopped"


def test_a_key_can_be_typed_without_a_mouse(browser: Any, keyed: PageServer) -> None:
    page = Page(browser, keyed)
    keyboard = Keyboard(page)
    assert keyboard.focus == "API key"
    keyboard.press(KEY, Keys.ENTER)
    page.wait(lambda: page.run("return document.activeElement.id") == "message")
    keyboard.press("hello", Keys.ENTER)
    page.wait(lambda: page.answers() == ["hello"])


@pytest.mark.parametrize("size", [NARROW, (768, 1024), WIDE])
def test_nothing_is_wider_than_the_screen(
    browser: Any, server: PageServer, size: Size, tmp_path: Path
) -> None:
    page = Page(browser, server, size)
    long = "x" * 400 + " " + "y" * 400
    path = tmp_path / f"{'long' * 40}.png"
    Image.new("RGB", (600, 20), "teal").save(path)
    page.choose(path)
    page.wait(page.files)
    table = f"|{'a|' * 20}\n|{'-|' * 20}\n|{'word word|' * 20}"
    page.ask(json.dumps({"mock": {"text": f"# {long}\n`{long}`\n\n{table}\n\n```\n{long}\n```"}}))
    page.click("Another answer beside it")
    page.wait_for_end()
    for name in ("Inspect", "Request as a program", "Settings", ""):
        if name:
            page.click(name)
        width = page.run("return document.documentElement.scrollWidth")
        assert width <= size[0], name
        if name:
            dialog = page.find("dialog[open]")
            assert dialog.rect["x"] >= 0
            assert dialog.rect["width"] <= size[0]
            page.click("Close", "dialog[open]")
