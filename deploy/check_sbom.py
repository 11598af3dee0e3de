"""Holds a bill of materials against CycloneDX's schema and its package URLs against their rules.

.venv-deploy/bin/python deploy/check_sbom.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL


def main() -> int:
    """1 and a line of why for the first fault."""
    text = Path(sys.argv[1]).read_text()
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        print(str(fault).partition("\n")[0], file=sys.stderr)
        return 1
    for component in json.loads(text)["components"]:
        read = PackageURL.from_string(component["purl"])
        if (read.version, read.to_string()) != (component["version"], component["purl"]):
            print(f"{component['purl']} is read as {read.to_string()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
