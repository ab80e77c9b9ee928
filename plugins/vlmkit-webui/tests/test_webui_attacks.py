"""Malicious answers in a real browser: they execute nothing, load nothing and hide nothing."""

import json
from typing import Any

import pytest
from chromium import Page, script

LONG = 20_000
ATTACKS = {
    "script": "<script>window.owned = 1</script>",
    "image handler": "<img src=x onerror='window.owned = 1'>",
    "image of elsewhere": "<img src='http://127.0.0.1:9/pixel'>",
    "svg": "<svg onload='window.owned = 1'><script>window.owned = 1</script></svg>",
    "frame": "<iframe srcdoc='<script>parent.owned = 1</script>'></iframe>",
    "object": "<object data='data:text/html,<script>opener.owned = 1</script>'></object>",
    "style": "<style>* { display: none }</style><div style='position:fixed;inset:0'>x</div>",
    "link element": "<link rel=stylesheet href='http://127.0.0.1:9/style.css'>",
    "meta refresh": "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "base": "<base href='http://127.0.0.1:9/'>",
    "form": "<form action='http://127.0.0.1:9/'><input autofocus><button>Go</button></form>",
    "details handler": "<details open ontoggle='window.owned = 1'>x</details>",
    "closing tags": "</code></pre></div></article></main><script>window.owned = 1</script>",
    "markdown image": "![pixel](http://127.0.0.1:9/pixel.png)",
    "image of data": "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "script link": "[click](javascript:window.owned=1)",
    "hidden script link": "[click](java\tscript:window.owned=1)",
    "data link": "[click](data:text/html,<script>window.owned=1</script>)",
    "file link": "[click](file:///etc/passwd)",
    "link with password": "[bank](https://bank.example@127.0.0.1:9/)",
    "quotes in a link": '[x](https://127.0.0.1:9/" onmouseover="window.owned=1)',
    "autolink": "<javascript:window.owned=1>",
    "html in code": "```html\n<script>window.owned = 1</script>\n```",
    "language of code": '```"><img src=x onerror=window.owned=1>\nx\n```',
    "html in a table": "| <img src=x onerror=window.owned=1> | b |\n|---|---|\n| <b>x</b> | y |",
    "terminal codes": "\x1b]8;;http://127.0.0.1:9/\x1b\\click\x1b]8;;\x1b\\ \x1b[2J\x1b[31mred",
    "reversed text": "access \u202eetisbew\u202c granted",
    "isolates": "if x \u2066/* \u2069\u2066 begin */",
    "invisible letters": "pass\u200bword \u2060a\ufeffb \U000e0041\U000e0042",
    "deep nesting": "> " * 2_000 + "x\n" + "[" * 3_000 + "*_" * 2_000,
    "many marks": "*a " * (LONG // 6) + "`" * 99 + "[x](" * (LONG // 8),
    "entities": "&lt;script&gt;window.owned = 1&lt;/script&gt; &#60;img src=x onerror=owned=1&#62;",
}  # fmt: skip
TAGS = {
    "P", "BR", "A", "SPAN", "CODE", "PRE", "EM", "STRONG", "DEL", "UL", "OL", "LI", "BLOCKQUOTE",
    "HR", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "DIV", "BUTTON", "SVG", "PATH",
    "H3", "H4", "H5", "H6",
}  # fmt: skip
ATTRIBUTES = {
    "dir", "class", "href", "target", "rel", "start", "role", "aria-label", "aria-hidden", "title",
    "tabindex", "type", "viewBox", "d",
}  # fmt: skip
SHOWN = """
const nodes = [...document.querySelectorAll('.answer .prose *, .answer .call *')];
return {
  owned: window.owned ?? null,
  place: location.href,
  text: document.querySelector('.answer').textContent,
  tags: [...new Set(nodes.map((node) => node.tagName.toUpperCase()))],
  attributes: [...new Set(nodes.flatMap((node) => node.getAttributeNames()))],
  links: [...document.querySelectorAll('.answer a')].map(
    (link) => [link.protocol, link.rel, link.target, link.username]),
};
"""


def requested(page: Page) -> set[str]:
    """Return the addresses that the browser asked for since the page was opened."""
    entries = [
        json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")
    ]
    sent = [each for each in entries if each["method"] == "Network.requestWillBeSent"]
    return {each["params"]["request"]["url"] for each in sent}


def check(page: Page, shown: dict[str, Any]) -> None:
    """Check that an answer is nodes of texts, and that nothing came of it."""
    assert shown["owned"] is None
    assert shown["place"] == f"{page.server.url}/"
    assert {*shown["tags"]} <= {*TAGS, "DETAILS", "SUMMARY"}
    assert {*shown["attributes"]} <= {*ATTRIBUTES, "open"}
    for protocol, rel, target, username in shown["links"]:
        assert protocol in ("http:", "https:")
        assert (rel, target, username) == ("noopener noreferrer nofollow", "_blank", "")
    assert all(url.startswith(f"{page.server.url}/") for url in requested(page))
    assert [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert len(page.driver.window_handles) == 1


@pytest.mark.parametrize("name", ATTACKS)
def test_a_malicious_answer_is_shown_as_text(page: Page, name: str) -> None:
    page.ask(script(text=ATTACKS[name]))
    shown = page.run(SHOWN)
    check(page, shown)
    for mark in ("<script>", "<img", "<iframe", "<form", "javascript:", "&lt;", "data:text/html"):
        if mark in ATTACKS[name]:
            assert mark in shown["text"]


@pytest.mark.parametrize("name", ["script", "image handler", "closing tags", "reversed text"])
def test_malicious_reasoning_and_calls_are_shown_as_text(page: Page, name: str) -> None:
    attack = ATTACKS[name]
    page.run("document.body.dataset.tools = ''")
    calls = [{"name": "look", "arguments": {"at": attack}}]
    page.click("Settings")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    page.run("arguments[0].value = arguments[1]", page.find("[name=tools]"), json.dumps(tools))
    page.click("Use these settings")
    page.ask(script(reasoning=attack, text="I look.", calls=calls))
    check(page, page.run(SHOWN))
    assert "look" in page.find(".call summary").text


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("terminal codes", ["U+001B"]),
        ("reversed text", ["U+202E", "U+202C"]),
        ("isolates", ["U+2066", "U+2069"]),
        ("invisible letters", ["U+200B", "U+2060", "U+FEFF", "U+E0041"]),
    ],
)
def test_hidden_characters_are_shown_by_their_number(
    page: Page, name: str, codes: list[str]
) -> None:
    text = page.ask(script(text=ATTACKS[name]))
    assert [code for code in codes if code not in text] == []
    assert not {*ATTACKS[name]} & {*text} & {*"\x1b\u202e\u202c\u2066\u2069\u200b\u2060\ufeff"}


def test_a_link_says_where_it_leads(page: Page) -> None:
    text = page.ask(
        script(text="[your bank](https://127.0.0.1:9/login) and https://example.org/a.")
    )
    assert "your bank (127.0.0.1:9)" in text
    links = page.run("return [...document.querySelectorAll('.answer a')].map((link) => link.href)")
    assert links == ["https://127.0.0.1:9/login", "https://example.org/a"]


def test_markup_in_the_name_of_a_file_is_shown_as_text(page: Page, tmp_path: Any) -> None:
    from PIL import Image

    path = tmp_path / "<img src=x onerror=window.owned=1>.png"
    Image.new("RGB", (40, 30), "teal").save(path)
    page.choose(path)
    page.wait(page.files)
    page.ask("Look")
    page.click("Inspect")
    page.wait(lambda: page.find("#inspector h3").text == path.name)
    assert page.run("return window.owned ?? null") is None
