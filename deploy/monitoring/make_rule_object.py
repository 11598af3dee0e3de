"""Writes prometheusrule.yaml, the Prometheus operator's form of rules.yml.

python deploy/monitoring/make_rule_object.py          writes it
python deploy/monitoring/make_rule_object.py --check  says whether it is up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

_RULES = Path(__file__).with_name("rules.yml")
TARGET = Path(__file__).with_name("prometheusrule.yaml")
_HEAD = """\
# Made from rules.yml by make_rule_object.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: talkwire
  namespace: talkwire
  labels:
    app.kubernetes.io/name: talkwire
spec:
"""


def rule_object() -> str:
    """The object as text: the rules as they are written, comments included, two spaces in."""
    lines = _RULES.read_text().splitlines()
    return _HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


def main() -> int:
    """Write or compare; 1 if ``--check`` finds a difference."""
    if sys.argv[1:] == ["--check"]:
        is_same = TARGET.exists() and TARGET.read_text() == rule_object()
        print(f"{TARGET.name} is {'up to date' if is_same else 'not up to date'}")
        return 0 if is_same else 1
    TARGET.write_text(rule_object())
    return 0


if __name__ == "__main__":
    sys.exit(main())
