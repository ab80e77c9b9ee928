"""The files for a forge are valid, and its workflows run nothing but the tasks of the noxfile."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(p for p in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")
SESSIONS = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vlmkit"]["repository"]
VALIDATED = [
    ("github-workflows", WORKFLOWS),
    ("github-issue-forms", FORMS),
    ("github-issue-config", [FORGE / "ISSUE_TEMPLATE/config.yml"]),
    ("citation-file-format", [ROOT / "CITATION.cff"]),
]


@pytest.mark.parametrize(("schema", "paths"), VALIDATED, ids=[name for name, _ in VALIDATED])
def test_files_follow_the_schema_of_their_kind(schema, paths):
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def jobs():
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield pytest.param(job, id=f"{path.stem}-{name}")


@pytest.mark.parametrize("job", list(jobs()))
def test_a_job_runs_sessions_of_nox_alone(job):
    commands = [step["run"] for step in job["steps"] if "run" in step]
    commands = [each for each in commands if not each.endswith(" -m pip install nox")]
    sessions = set(job.get("strategy", {}).get("matrix", {}).get("session", ()))
    for command in commands:
        name = re.fullmatch(r'python[\d.]* -m nox -s (\w+|"\$SESSION")', command)
        assert name, command
        sessions |= {name[1]} - {'"$SESSION"'}
    assert sessions <= SESSIONS
    assert job["timeout-minutes"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_it_publishes(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] in ({"contents": "read"}, {})
    writing = {
        name
        for name, job in workflow["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == ({"publish"} if path.stem == "release" else set())


def test_only_a_tag_publishes_and_only_what_was_built_and_checked():
    publish = yaml.safe_load((FORGE / "workflows/release.yml").read_text())["jobs"]["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["needs"] == "build"


def test_links_of_the_forms_lead_to_the_repository():
    (link,) = yaml.safe_load((FORGE / "ISSUE_TEMPLATE/config.yml").read_text())["contact_links"]
    assert link["url"].startswith(REPOSITORY)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["repository-code"] == REPOSITORY
