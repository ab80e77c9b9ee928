"""``python -m vlmkit_monitor dashboard|rules``: prints files for Grafana and Prometheus."""

import json
import sys
from importlib.resources import files

from vlmkit_monitor.dashboard import dashboard


def main(arguments: list[str]) -> None:
    """Print the dashboard or the alerting rules."""
    if arguments == ["dashboard"]:
        sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
    elif arguments == ["rules"]:
        sys.stdout.write(files("vlmkit_monitor").joinpath("rules.yml").read_text("utf-8"))
    else:
        sys.exit("usage: python -m vlmkit_monitor dashboard|rules")


if __name__ == "__main__":
    main(sys.argv[1:])
