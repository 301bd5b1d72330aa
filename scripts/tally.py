"""Adds up what the test runs of one `make test` counted: `tally.py DIRECTORY` with pytest's reports in it."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as Xml


def main() -> None:
    passed = failed = skipped = 0
    for report in Path(sys.argv[1]).glob("*.xml"):
        for suite in Xml.parse(report).getroot().iter("testsuite"):  # noqa: S314 - pytest wrote it just now
            wrong = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            left_out = int(suite.get("skipped", 0))
            failed += wrong
            skipped += left_out
            passed += int(suite.get("tests", 0)) - wrong - left_out
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    main()
