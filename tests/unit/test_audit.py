"""Tests of the repository audit: what it detects, and the allowed findings of this tree."""

from __future__ import annotations

import json
import re

import pytest
from scripts import audit

from release.sbom import ACCEPTED_LICENCES

PAGE = """
| Package | Version | Licence | Part | Why | Maintained by |
|---|---|---|---|---|---|
| `thing` | 1.0 | MIT | agent | to do it | Somebody |
"""
# Concatenated here, so that the audit of this file finds none of them.
SECRETS = {
    "private key": "-----BEGIN " + "PRIVATE KEY-----\n" + "A" * 64,
    "Entra client secret": "Ab1" + "8Q~" + "x" * 31,
    "storage key": "AccountKey" + "=" + "A1b2" * 21 + "==",
    "AWS key": "AKI" + "A" + "Q7ZP2LX9VB4NM1KD",
    "token of a code host": "ghp" + "_" + "a1B2" * 9,
    "signed token": ".".join(("ey" + "J" + "a" * 12, "ey" + "J" + "b" * 12, "c" * 12)),
    "bootstrap token": "abc123" + "." + "0123456789abcdef",
    "admin key": "aksflex_" + "admin_" + "q" * 43,
    "password in a URL": "https://me:" + "hunter2hunter2" + "@host.example/",
    "something secret": "password" + ' = "' + "q7Zp2Lx9Vb4Nm1Kd8Rt3" + '"',
}


def test_every_secret_pattern_has_a_test_case() -> None:
    assert set(SECRETS) == set(audit.SECRETS)


@pytest.mark.parametrize("what", SECRETS)
def test_secret_is_reported_with_line_and_without_its_value(what: str) -> None:
    found = audit.secrets_in("file.py", f"one\ntwo {SECRETS[what]}\n")

    assert [(each.what, each.line) for each in found] == [(what, 2)]
    (told,) = audit.unexpected_findings(found, "")
    assert told.startswith(f"file.py:2: looks like a {what}")
    assert SECRETS[what] not in told


@pytest.mark.parametrize(
    "text",
    [
        'token = "the-name-of-a-setting-in-words"',
        "https://user@host.example/",
        "registry.k8s.io/pause:3.9",
        "-----BEGIN " + "PRIVATE KEY----- … -----END",
    ],
)
def test_plain_text_and_placeholders_are_not_reported_as_secrets(text: str) -> None:
    assert audit.secrets_in("file.py", text) == []


def test_allowed_finding_needs_matching_file_reason_and_presence() -> None:
    text = SECRETS["bootstrap token"]
    (known,) = audit.secrets_in("tests/a.py", text)
    allowed = f"{known.fingerprint}  made up"

    assert audit.unexpected_findings([known], allowed) == []
    assert (
        len(audit.unexpected_findings(audit.secrets_in("src/b.py", text), allowed)) == 2
    )  # a finding in another file, and an unused exception
    assert audit.unexpected_findings([known], known.fingerprint) == [
        f"scripts/audit-allowed: {known.fingerprint} has no reason"
    ]


@pytest.mark.parametrize(
    "line", ["x = 1  # no" + "qa", "# ruff: no" + "qa", "x()  # type: " + "ignore", "x()  # no" + "sec"]
)
def test_blanket_rule_suppression_is_reported(line: str) -> None:
    assert audit.blankets_in("file.py", line)
    assert audit.blankets_in("file.py", "x = 1  # no" + "qa: S105  # type: " + "ignore[misc]") == []


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        ("thing==1.0 \\\n    --hash=sha256:00\n", ""),
        ("thing==1.1 \\\n", "thing was reviewed in 1.0"),
        ("thing==1.0\nother==2.0 ; python_version < '3.11' \\\n", "other is not reviewed"),
        ("", "thing is not a dependency"),
    ],
)
def test_pinned_and_reviewed_dependencies_must_match(pins: str, told: str) -> None:
    assert "\n".join(audit.dependency_problems(PAGE, [pins])).startswith(
        f"docs/reference/dependencies.md: {told}" if told else ""
    )
    assert bool(audit.dependency_problems(PAGE, [pins])) is bool(told)


def test_unreviewed_licence_of_dependency_is_reported() -> None:
    assert audit.dependency_problems(PAGE.replace("MIT", "AGPL-3.0"), ["thing==1.0"])


def test_licences_allowed_by_audit_are_accepted_for_release() -> None:
    licences = {each for expression in audit.LICENCES for each in re.split(r" AND | OR ", expression)}
    assert licences <= ACCEPTED_LICENCES


HASH = "--hash=sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (f"thing==1.0 ; python_version < '3.11' \\\n    {HASH} \\\n    {HASH}\n    # via other\n", 0),
        ("thing==1.0 \\\n    # via other\n", 1),
        (f"thing>=1.0 {HASH}\n", 1),
        ("thing @ https://host.example/thing.whl\n", 1),
        ("--index-url https://host.example/\n", 1),
        (f"thing==1.0 {HASH}\nother==2.0\n", 1),
    ],
)
def test_requirement_without_version_and_hash_is_rejected(text: str, problems: int) -> None:
    assert len(audit.unhashed("requirements/base.txt", text)) == problems


def test_npm_package_without_integrity_is_rejected() -> None:
    packages = {"": {}, "node_modules/a": {"integrity": "sha512-x"}, "node_modules/b": {"version": "1.0"}}

    (told,) = audit.unhashed("api/package-lock.json", json.dumps({"packages": packages}))
    assert told == "api/package-lock.json: node_modules/b has no integrity hash"


@pytest.mark.parametrize(
    "path", [*audit.PINS, "requirements/dev.txt", "api/package-lock.json", "a/b/requirements.txt"]
)
def test_audit_knows_pin_files_by_their_names(path: str) -> None:
    assert audit.PIN_FILE.search(path)
