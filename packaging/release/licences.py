"""Under which licence each package comes, as its own metadata says. One that nobody looked at stops the release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from release.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

    from release.trees import Tree

# What may be shipped beside MIT: all of them permissive, and MPL-2.0, whose duties end at its own files.
ACCEPTED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense"),
}
# The older ways to say it.
WORDS = {
    "MIT License": "MIT",
    "ISC License": "ISC",
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Packages whose metadata say only "BSD" or less: their licence files were read.
READ = {"isodate": "BSD-3-Clause", "jinja2": "BSD-3-Clause", "uvloop": "MIT OR Apache-2.0"}


@dataclass(frozen=True, order=True)
class Package:
    """A package of others that is shipped with ours."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(trees: Iterable[Tree]) -> list[Package]:
    """Every package in any of the trees, in every version, each once."""
    texts = {path.read_text() for tree in trees for path in tree.folder.glob("*.dist-info/METADATA")}
    return sorted({package(text) for text in texts})


def package(metadata: str) -> Package:
    headers = HeaderParser().parsestr(metadata)
    needs = {plain(found[0]) for line in headers.get_all("Requires-Dist", []) if (found := _needed(line))}
    return Package(plain(headers["Name"]), headers["Version"], licence(headers), tuple(sorted(needs)))


def _needed(line: str) -> re.Match[str] | None:
    return None if "extra ==" in line else re.match(r"[A-Za-z0-9._-]+", line)


def licence(headers: Message) -> str:
    """As an SPDX expression."""
    name = plain(headers["Name"])
    classifiers = [line for line in headers.get_all("Classifier", []) if line.startswith("License ::")]
    said = [headers["License-Expression"], READ.get(name), headers["License"], *classifiers]
    for words in filter(None, said):
        expression: str = WORDS.get(words.strip(), words.strip())
        if set(re.split(r"\s+(?:AND|OR)\s+", expression)) <= ACCEPTED:
            return expression
    raise Refused(
        f"{name} {headers['Version']} comes under a licence that was not looked at: "
        f"{[words[:60] for words in said if words]}. Read it; add it to ACCEPTED or READ, or drop the package."
    )


def listed(program: str, found: list[Package]) -> str:
    """For people: what is shipped, and under which licence."""
    rows = [f"{item.name:<24} {item.version:<14} {item.licence}" for item in found]
    head = f"{program} itself is under the MIT licence. It is shipped with these, each with its licence beside it:"
    return "\n".join([head, "", *rows, ""])
