"""Does with installed wheels what a new user does: ask, serve, and query by OpenAI's client.

Run as ``python first_steps.py PICTURE`` in an environment with ``openai``. It imports nothing of
the repository, and fails where vlmkit comes from there.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

QUESTION = "What is in this picture?"
SEEN = "circle"
TIMEOUT_S = 600


def main(picture: str) -> None:
    """Try each step; an assertion names the one that fails."""
    import vlmkit

    picture = str(Path(picture).resolve())
    installed = Path(sysconfig.get_path("purelib"))
    assert Path(vlmkit.__file__).is_relative_to(installed), vlmkit.__file__
    with tempfile.TemporaryDirectory() as folder:
        version = output(folder, "--version")
        assert version.strip() == f"vlmkit, version {vlmkit.__version__}", version
        output(folder, "plugins", "--check")
        assert SEEN in output(folder, "ask", "demo", QUESTION, "--image", picture)
        with served(Path(folder)) as url, openai.OpenAI(base_url=url, api_key="none") as client:
            assert SEEN in answer(client, picture)
            assert SEEN in answer(client, picture, stream=True)
    sys.stdout.write(f"Python {sys.version.split()[0]}: {version.strip()} answers and serves\n")


def vlmkit_command() -> str:
    """Return the installed command, which need not be on the path."""
    command = shutil.which("vlmkit", path=sysconfig.get_path("scripts"))
    assert command, "the command vlmkit is not installed"
    return command


def output(folder: str, *arguments: str) -> str:
    """Run a command of vlmkit in a folder without sources; return what it prints."""
    done = subprocess.run(
        [vlmkit_command(), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the demo at a free port; yield the base of its API, and stop it."""
    log = folder / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            [vlmkit_command(), "serve", "demo", "--port", "0"], cwd=folder, stderr=file
        ) as server,
    ):
        try:
            ends_s = time.monotonic() + TIMEOUT_S
            while "'demo' is ready" not in (said := log.read_text()):
                assert server.poll() is None, said
                assert time.monotonic() < ends_s, said
                time.sleep(0.2)
            found = re.search(r"listening on (http://\S+)", said)
            assert found, said
            yield f"{found[1]}/v1"
            server.terminate()
            status = server.wait(TIMEOUT_S)
            assert status == 0 or os.name == "nt", log.read_text()
        finally:
            server.kill()


def answer(client: openai.OpenAI, picture: str, *, stream: bool = False) -> str:
    """Ask about a picture, by one response or a stream."""
    content = base64.b64encode(Path(picture).read_bytes()).decode()
    parts = [
        {"type": "text", "text": QUESTION},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}},
    ]
    done = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": parts}],  # type: ignore[misc,list-item]
        stream=stream,
    )
    if stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in done)
    return done.choices[0].message.content or ""


if __name__ == "__main__":
    main(*sys.argv[1:])
