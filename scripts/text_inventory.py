"""Lists every text that a user or a developer reads: one line each, with its file, line and kind.

usage: python scripts/text_inventory.py [PATTERN]   (PATTERN: a regular expression; only texts that match are listed)

Texts come from Python (string constants with words, docstrings, comments, test names), templates, unit files, the API
contract, shell scripts and Markdown, so that a check of texts includes all of them. tests/docs/test_plain_language.py
uses this list.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
TEXT_SUFFIXES = {
    ".html",
    ".md",
    ".tsp",
    ".service",
    ".conf",
    ".toml",
    ".yaml",
    ".yml",
    ".bicep",
    ".tf",
    ".sh",
    ".js",
    ".css",
}
SKIPPED = ("package-lock.json", "requirements/", "tests/browser/axe/")
WORDS = re.compile(r"[A-Za-z]{2,}[ ,:][^\n]*[A-Za-z]{2,}")


@dataclass(frozen=True)
class Text:
    file: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {' '.join(self.text.split())}"


def all_texts() -> Iterator[Text]:
    """Returns all texts of the files in the repository."""
    names = subprocess.run(("git", "ls-files"), cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    for name in names:
        path = ROOT / name
        if not name or name.startswith(SKIPPED) or name.endswith(SKIPPED) or not path.is_file() or path.is_symlink():
            continue
        if path.suffix == ".py":
            yield from python_texts(name, path.read_text())
        elif path.suffix in TEXT_SUFFIXES or (not path.suffix and is_script(path)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if WORDS.search(line):
                    yield Text(name, number, "text", line.strip())


def is_script(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(2) == b"#!" or path.name == "Makefile"


def python_texts(name: str, source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings = {id(node) for node in docstring_nodes(tree)}
    inner = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            kind = "docstring" if id(node) in docstrings else "message"
            if WORDS.search(node.value):
                yield Text(name, node.lineno, kind, node.value)
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
            if WORDS.search(text):
                yield Text(name, node.lineno, "message", text)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield Text(name, node.lineno, "test", node.name.replace("_", " "))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and WORDS.search(token.string):
            yield Text(name, token.start[0], "comment", token.string.lstrip("# "))


def docstring_nodes(tree: ast.AST) -> Iterator[ast.Constant]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def main(pattern: str = "") -> None:
    wanted = re.compile(pattern, re.IGNORECASE)
    for text in all_texts():
        if wanted.search(text.text):
            print(text)


if __name__ == "__main__":
    main(*sys.argv[1:2])
