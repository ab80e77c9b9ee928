"""Records the pictures of the web page that the documentation shows: ``nox -s figures`` runs it.

It drives Chromium by the helpers of vlmkit-webui's tests, which check what the page does.
"""

import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import server

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "plugins/vlmkit-webui/tests"))
import chromium  # noqa: E402

FOLDER = ROOT / "docs/figures"
PICTURE = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"
SIZE = (1200, 680)
DRAWN_S = 1.0  # until animations have ended


def main() -> None:
    """Ask the packaged model about a picture, and record the answer and the inspector."""
    if chromium.BROWSER is None or chromium.DRIVER is None:
        print("the web page is left as it is: Chromium and its driver are not installed")
        return
    port = server.free_port()
    command = [sys.executable, "-m", "vlmkit", "serve", "demo", "--port", str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        server.running(command, port, "/readyz", Path(folder) / "log"),
        chromium.started_browser(Path(folder)) as driver,
    ):
        page = chromium.Page(driver, SimpleNamespace(port=port), SIZE)
        page.choose(PICTURE)
        page.wait(page.files)
        page.ask("What is in this picture?")
        time.sleep(DRAWN_S)
        driver.save_screenshot(str(FOLDER / "web-page.png"))
        page.click("Inspect")
        time.sleep(DRAWN_S)
        driver.save_screenshot(str(FOLDER / "image-inspector.png"))


if __name__ == "__main__":
    main()
