"""Checks the tree for secrets, for disabled checks, and for dependencies without a review or a hash.

It needs only Python and git, and no network. scripts/audit-allowed lists the fingerprints of intended findings, for
example a fictitious token of a test, with a reason; `scripts/audit.py --fingerprints` prints lines for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts" / "audit-allowed"
REVIEW = ROOT / "docs" / "reference" / "dependencies.md"
PINS = ("requirements/base.txt", "requirements/rp.txt", "requirements/lab.txt")
LARGEST = 2 << 20
NOT_OURS = re.compile(
    r"(^|/)(go\.sum|package-lock\.json|requirements[^/]*\.txt)$|^requirements/|\.(png|woff2|gz|xz)$"
)
PIN_FILE = re.compile(r"(^|/)(package-lock\.json|requirements[^/]*\.txt)$|^requirements/[^/]+\.txt$")
# Licences that allow redistribution of a package. Any other needs a review.
LICENCES = {
    *("MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "MPL-2.0", "PSF-2.0"),
    *("Apache-2.0 OR BSD-3-Clause", "Apache-2.0 AND BSD-2-Clause"),
}

SECRETS = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\\?n?\s*[A-Za-z0-9+/=]{40,}"),
    "Entra client secret": re.compile(r"\b[\w~.-]{3}[78]Q~[\w~.-]{31,34}"),
    "storage key": re.compile(r"AccountKey=[A-Za-z0-9+/]{60,}={0,2}"),
    "AWS key": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    "token of a code host": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36})\b"),
    "signed token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "bootstrap token": re.compile(r"(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w.-])"),
    "admin key": re.compile(r"\baksflex_admin_[\w-]{20,}"),
    "password in a URL": re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@{}<>$\"']+:[^/\s:@{}<>$\"']{6,}@"),
    "something secret": re.compile(
        r"(?i)(?:password|passwd|secret|token|api_?key|access_?key)[\"']?\s*[:=]\s*[\"']([A-Za-z0-9+/_~.=-]{20,})[\"']"
    ),
}
BLANKETS = {
    "all rules are disabled for a line": re.compile(r"#\s*noqa(?!:)", re.IGNORECASE),
    "all rules are disabled for a file": re.compile(r"#\s*(?:ruff|flake8):\s*noqa(?!:)", re.IGNORECASE),
    "all type checks are disabled for a line": re.compile(r"#\s*type:\s*ignore(?!\[)"),
    "bandit is disabled": re.compile(r"#\s*nosec"),
}


@dataclass(frozen=True)
class SecretFinding:
    path: str
    line: int
    what: str
    value: str

    @property
    def fingerprint(self) -> str:
        """Returns a hash of the value and its file, so that the list contains no secret and applies to one file."""
        return hashlib.sha256(f"{self.path}\0{self.what}\0{self.value}".encode()).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    texts = dict(sources())
    found = [each for path, text in texts.items() for each in secrets_in(path, text)]
    if arguments == ["--fingerprints"]:
        for each in dict.fromkeys((each.fingerprint, each.path, each.what) for each in found):
            print(*each, sep="  ")
        return 0
    problems = [
        *unexpected_findings(found, ALLOWED.read_text()),
        *(each for path, text in texts.items() for each in blankets_in(path, text)),
        *dependency_problems(REVIEW.read_text(), [(ROOT / name).read_text() for name in PINS]),
        *(each for path in pin_files() for each in unhashed(path, (ROOT / path).read_text())),
    ]
    for problem in problems:
        print(problem)
    print(f"audit: {len(texts)} files, " + (f"{len(problems)} problems" if problems else "nothing found"))
    return 1 if problems else 0


def sources() -> list[tuple[str, str]]:
    """Returns all text files of the repository, also new ones."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    found = []
    for name in sorted(set(listing.stdout.decode().split("\0")) - {""}):
        path = ROOT / name
        if NOT_OURS.search(name) or not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST:
            continue
        content = path.read_bytes()
        if b"\0" not in content[:8192]:
            found.append((name, content.decode(errors="replace")))
    return found


def secrets_in(path: str, text: str) -> list[SecretFinding]:
    found = []
    for what, pattern in SECRETS.items():
        for match in pattern.finditer(text):
            value = match[match.lastindex or 0]
            if what != "something secret" or looks_random(value):
                found.append(SecretFinding(path, text.count("\n", 0, match.start()) + 1, what, value))
    return found


def looks_random(value: str) -> bool:
    """Returns whether a value looks random: words repeat letters and have few digits, keys do not."""
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return entropy > 3.7 and any(char.isdigit() for char in value) and any(char.isalpha() for char in value)


def unexpected_findings(found: list[SecretFinding], allow_list: str) -> list[str]:
    """Returns findings that are not allowed, and allowed ones that no longer exist."""
    lines = [line.split(maxsplit=1) for line in allow_list.splitlines() if line.strip() and not line.startswith("#")]
    allowed = {line[0] for line in lines}
    known = {each.fingerprint for each in found}
    new = [
        f"{each.path}:{each.line}: looks like a {each.what}; if it is not a real secret, allow {each.fingerprint}"
        for each in found
        if each.fingerprint not in allowed
    ]
    bare = [f"scripts/audit-allowed: {line[0]} has no reason" for line in lines if len(line) < 2]
    return [
        *new,
        *bare,
        *(f"scripts/audit-allowed: {each} is no longer found" for each in sorted(allowed - known)),
    ]


def blankets_in(path: str, text: str) -> list[str]:
    if not path.endswith(".py"):
        return []
    lines = enumerate(text.splitlines(), 1)
    return [
        f"{path}:{number}: {what}; name the rule"
        for number, line in lines
        for what, it in BLANKETS.items()
        if it.search(line)
    ]


def dependency_problems(page: str, pins: list[str]) -> list[str]:
    """Checks that the page lists exactly the pinned packages, in these versions, with known licences."""
    reviewed = {row[0]: row for row in rows(page)}
    pinned: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)", "\n".join(pins), re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
    problems = [
        f"docs/reference/dependencies.md: {name} is not reviewed" for name in sorted(set(pinned) - set(reviewed))
    ]
    problems += [
        f"docs/reference/dependencies.md: {name} is not a dependency" for name in sorted(set(reviewed) - set(pinned))
    ]
    for name, (_, versions, licence, *others) in sorted(reviewed.items()):
        if name in pinned and set(versions.split(", ")) != pinned[name]:
            problems.append(
                f"docs/reference/dependencies.md: {name} was reviewed in {versions}, not in {sorted(pinned[name])}"
            )
        if licence not in LICENCES or not all(others):
            problems.append(
                f"docs/reference/dependencies.md: {name} has no known licence, no reason or no maintainer"
            )
    return problems


def pin_files() -> list[str]:
    """Returns all files of the repository that pin packages of Python or of npm."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listing.stdout.decode().split("\0") if PIN_FILE.search(name) and (ROOT / name).is_file()]


def unhashed(path: str, text: str) -> list[str]:
    """Returns the packages of a pin file that are installed without the comparison of a hash."""
    if path.endswith(".json"):
        packages = json.loads(text).get("packages", {})
        named = {name: each for name, each in packages.items() if name and not each.get("link")}
        return [f"{path}: {name} has no integrity hash" for name, each in named.items() if not each.get("integrity")]
    joined = re.sub(r"\\\n", " ", text)
    lines = [line.split("#")[0].strip() for line in joined.splitlines()]
    return [
        f"{path}: {line.split()[0]} is not pinned with a version and a hash"
        for line in lines
        if line
        and not (re.match(r"[\w.\[\]-]+==\S", line) and re.search(r"--hash=sha(256|384|512):[0-9a-f]{64}", line))
    ]


def rows(page: str) -> list[list[str]]:
    """Returns the rows of the table: package, versions, licence, component, reason, maintainer."""
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in page.splitlines()]
    return [row for row in cells if len(row) == 6 and re.fullmatch(r"[a-z0-9][\w.-]*", row[0])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
