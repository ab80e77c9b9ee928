"""The dashboard and the alert rules are valid and use existing metrics."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from vlmkit_monitor.dashboard import dashboard
from vlmkit_monitor.names import METRICS

PROCESS = {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
}
BY_TYPE = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERIES = PROCESS | {m.name + end for m in METRICS for end in BY_TYPE[m.type]}
LABELS = {m.name: {*m.labels, "le"} for m in METRICS}


def printed(what):
    command = [sys.executable, "-m", "vlmkit_monitor", what]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def rules():
    return printed("rules")


def expressions(rules):
    found = re.findall(r"^        expr: (.*)$", rules, re.MULTILINE)
    assert len(found) == rules.count("expr:") > 10
    return found


def queries():
    return [t["expr"] for panel in dashboard()["panels"] for t in panel.get("targets", ())]


def test_each_query_of_the_dashboard_names_existing_metrics():
    assert len(queries()) > 20
    for query in queries():
        names = set(re.findall(r"\b(?:vlmkit|process)_\w+", query))
        assert names, query
        assert names <= SERIES, query


def test_each_rule_names_existing_metrics(rules):
    recorded = set(re.findall(r"record: (\S+)", rules))
    for expression in expressions(rules):
        names = set(re.findall(r"\b(?:vlmkit|process)[_:][\w:]+", expression))
        assert names, expression
        assert names <= SERIES | recorded, expression


def test_metrics_have_the_labels_that_queries_group_by(rules):
    for query in [*queries(), *expressions(rules)]:
        for labels, name in re.findall(r"sum by \(([\w, ]+)\) \(rate\((vlmkit_\w+)", query):
            metric = re.sub(r"_(bucket|sum|count)$", "", name)
            assert set(labels.split(", ")) <= LABELS[metric] | {"instance"}, query


def test_grafana_can_import_the_dashboard():
    made = json.loads(printed("dashboard"))
    assert made == dashboard()
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in made["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in made["panels"])


def test_every_alert_has_a_severity_and_a_description(rules):
    alerts = rules.split("- alert: ")[1:]
    assert len(alerts) > 10
    for alert in alerts:
        assert re.search(r"severity: (warning|critical)", alert)
        assert "summary: " in alert


def test_the_rules_are_valid_yaml_rule_groups(rules):
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(rules)["groups"]
    assert all({"expr"} < set(rule) for rule in group["rules"])
    assert all(("alert" in rule) != ("record" in rule) for rule in group["rules"])


@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed")
def test_promtool_accepts_the_rules(rules, tmp_path):
    file = tmp_path / "rules.yml"
    queries_as_rules = (
        "".join(
            f"      - record: query:{number}\n        expr: {json.dumps(query)}\n"
            for number, query in enumerate(queries())
        )
        .replace("$__rate_interval", "5m")
        .replace("$model", ".*")
    )
    file.write_text(rules + queries_as_rules)
    command = ["promtool", "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
