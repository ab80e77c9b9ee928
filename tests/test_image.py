"""The image for CPUs builds, is small, and serves without root, capabilities or a writable root.

Docker or Podman builds it, from ``IMAGE_BASE`` if that is set. ``IMAGE_BUILD_OPTIONS`` has options
for machines with certificates or an index of their own, such as ``--volume``. The files of the
image then run under bubblewrap: a machine that can build images need not be able to run them.
"""

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.posix, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"
MAX_BYTES = 700_000_000
KEY = "k" * 32


def builder():
    """Return the command that builds images here; None if there is none."""
    for name in ("docker", "podman"):
        if shutil.which(name) and run(name, "info", check=False).returncode == 0:
            return name
    return None


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not check or done.returncode == 0, done.stderr[-5000:]
    return done


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Build the image, and copy its files into a folder."""
    engine = builder()
    if engine is None or shutil.which("bwrap") is None:
        pytest.skip("needs Docker or Podman, and bubblewrap")
    options = ["--format", "docker"] if engine == "podman" else []  # which has HEALTHCHECK
    options += shlex.split(os.environ.get("IMAGE_BUILD_OPTIONS", ""))
    if base := os.environ.get("IMAGE_BASE"):
        options += ["--build-arg", f"BASE={base}"]
    run(engine, "build", *options, "--file", "deploy/Dockerfile", "--tag", "vlmkit:tested", ".")
    folder = tmp_path_factory.mktemp("image")
    container = run(engine, "create", "vlmkit:tested").stdout.strip()
    archive = folder / "files.tar"
    run(engine, "export", "--output", str(archive), container)
    run(engine, "rm", container)
    (described,) = json.loads(run(engine, "image", "inspect", "vlmkit:tested").stdout)
    files = folder / "files"
    files.mkdir()
    run("tar", "--extract", "--file", str(archive), "--directory", str(files), "--exclude=dev/*")
    archive.unlink()
    health = described["Config"].get("Healthcheck") or described["Healthcheck"]
    return Image(files, described["Config"] | {"Healthcheck": health}, folder)


class Image:
    """The files of an image, and its config.

    Attributes:
        files: the root folder.
        config: user, variables, entry point, command and volumes.
        num_bytes: the size of all files.
    """

    def __init__(self, files, config, folder):
        self.files, self.config = files, config
        self._volumes = folder / "volumes"
        found = [path for path in files.rglob("*") if path.is_file() and not path.is_symlink()]
        self.num_bytes = sum(path.lstat().st_size for path in found)

    def sandbox(self, *command, **variables):
        """Return a command line that runs one in the image, as a pod would."""
        user, group = self.config["User"].split(":")
        line = ["bwrap", "--unshare-user", "--uid", user, "--gid", group, "--unshare-pid"]
        line += ["--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
        line += ["--cap-drop", "ALL", "--clearenv", "--ro-bind", str(self.files), "/"]
        line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for place in self.config["Volumes"]:
            own = self._volumes / place.strip("/").replace("/", "-")
            own.mkdir(parents=True, exist_ok=True)
            line += ["--bind", str(own), place]
        stated = dict(each.split("=", 1) for each in self.config["Env"]) | variables
        for name, value in stated.items():
            line += ["--setenv", name, value]
        return [*line, "--chdir", self.config["WorkingDir"], "--", *command]

    def output(self, *command):
        """Run a command in the image; return its status and its output."""
        line = self.sandbox(*command)
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout

    @contextmanager
    def served(self, log, **variables):
        """Run what a container of the image runs; yield the address and the process."""
        own = {"VLMKIT_SERVER__API_KEY": KEY, "VLMKIT_SERVER__PORT": "0", **variables}
        command = [*self.config["Entrypoint"], *self.config["Cmd"]]
        with (
            log.open("wb") as file,
            subprocess.Popen(self.sandbox(*command, **own), stdout=file, stderr=file) as process,
        ):
            try:
                ends_s = time.monotonic() + 600
                while "is ready" not in (said := log.read_text()):
                    assert process.poll() is None, said
                    assert time.monotonic() < ends_s, said
                    time.sleep(0.2)
                port = re.search(r"listening on http://0.0.0.0:(\d+)", said)[1]
                yield f"http://127.0.0.1:{port}", process
            finally:
                process.kill()


def test_the_image_is_small_and_has_neither_torch_nor_a_compiler_nor_pip(image):
    assert image.num_bytes < MAX_BYTES
    found = {path.name for path in image.files.glob("opt/vlmkit/lib/python*/site-packages/*")}
    assert {"vlmkit", "onnxruntime"} <= found
    assert not found & {"torch", "pip", "setuptools"}
    assert not [name for name in ("gcc", "git", "pip") if (image.files / "usr/bin" / name).exists()]


def test_the_image_runs_as_a_user_who_can_write_to_volumes_alone(image):
    user, _ = image.config["User"].split(":")
    assert int(user) >= 1000
    script = "import os; print(*(p for p, ds, _ in os.walk('/', topdown=True) if not "
    script += "p.startswith(('/proc', '/dev')) and os.access(p, os.W_OK)))"
    status, said = image.output("python3", "-c", script)
    assert status == 0, said
    assert set(said.split()) == {"/tmp", *image.config["Volumes"]}


def test_a_container_answers_about_a_picture_is_healthy_and_stops_at_sigterm(image, tmp_path):
    log = tmp_path / "log"
    with image.served(log) as (url, process):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        picture = base64.b64encode(PICTURE.read_bytes()).decode()
        source = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        text = {"type": "text", "text": "What is in this picture?"}
        with client:
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()
            answer = client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": [text, source]}]
            )
        assert "circle" in answer.choices[0].message.content
        kind, *probe = image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        assert image.output(*probe)[0] == 0
        stop(process)
        assert process.wait(300) == 0, log.read_text()
    assert image.output(*probe)[0] != 0, "the probe does not ask the server"


def stop(process):
    """Send SIGTERM to the first process of the image, as Docker does."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (first,) = children
    inside = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    os.kill(int(inside[0] if inside else first), 15)


def test_other_commands_run_in_the_image(image):
    status, said = image.output("tini", "--", "vlmkit", "ask", "demo", "Hello")
    assert status == 0, said
    status, said = image.output("tini", "--", "vlmkit", "plugins", "--check")
    assert status == 0, said


def test_without_a_key_a_container_does_not_start(image):
    status, said = image.output(*image.config["Entrypoint"], *image.config["Cmd"])
    assert status != 0
    assert "key" in said
