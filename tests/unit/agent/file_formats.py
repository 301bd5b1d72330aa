"""Parsers of the files that the agent generates. Each reads a file as the program does that uses it on a machine.
Returns maps, lists and plain values. What that program would expand is marked, so that a text is never taken for it.
"""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Files: TypeAlias = "Mapping[str, str]"
Directive: TypeAlias = "tuple[str, str]"
EXPANDED = "\N{REPLACEMENT CHARACTER}"  # before what a program replaces by something else
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
DIGITS = {"x": 2, "u": 4, "U": 8}


def parse_files(files: Files) -> dict[str, Any]:
    """Returns what each file says, and the commands of each unit. Raises KeyError for a file without a parser."""
    parsed = {path: _parse_file(path, content) for path, content in files.items()}
    used = tuple(
        (path, content) for path, content in files.items() if path.endswith((".conf", ".env")) or "/default/" in path
    )
    for path, content in files.items():
        if path.endswith(".service"):
            parsed[f"{path} commands"] = unit_commands(path, content, used)
    return parsed


@lru_cache(500)
def _parse_file(path: str, content: str) -> Any:
    return parser_of(path)(content)


def parser_of(path: str) -> Callable[[str], Any]:
    for pattern, parser in PARSERS.items():
        if fnmatchcase(path, pattern):
            return parser
    raise KeyError(f"No parser for the generated file {path}.")


# systemd: systemd.syntax(7), systemd.service(5) and systemd.exec(5).


def parse_unit(content: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in directives(content):
        kind = name.rpartition(".")[2]
        if kind in {"Environment", "ReadWritePaths", "ReadOnlyPaths", "DeviceAllow", "After", "SystemCallFilter"}:
            found.setdefault(name, []).extend(expand_specifiers(word) for word in split_words(value))
        elif not kind.startswith("Exec"):  # those are among the commands
            found.setdefault(name, []).append(expand_specifiers(value))
    return found


def directives(content: str) -> Iterator[Directive]:
    """Yields the directives of a unit file, such as `Service.ExecStart`, with their raw values."""
    section, whole = "", ""
    for line in content.split("\n"):
        if whole == "" and line.strip() == "":
            continue
        if line.lstrip()[:1] in {"#", ";"}:
            continue  # also between the lines of one value
        whole += line
        if whole.endswith("\\"):
            whole = f"{whole[:-1]} "
            continue
        text, whole = whole.strip(), ""
        if re.fullmatch(r"\[[^]]+\]", text):
            section = text[1:-1]
            continue
        name, equals, value = text.partition("=")
        assert equals, f"systemd would ignore the line {text!r}"
        yield f"{section}.{name.strip()}", value.strip()
    assert not whole, "the last line is continued"


def split_words(text: str) -> list[str]:
    """Splits at white space. Quotes keep a word together, and a backslash starts an escape, also in quotes."""
    found: list[str] = []
    word: str | None = None
    quote, rest = "", iter(text)
    for char in rest:
        if char == "\\":
            word = (word or "") + _unescape(rest)
        elif quote:
            word, quote = (word, "") if char == quote else (f"{word}{char}", quote)
        elif char in "\"'":
            word, quote = word or "", char
        elif char not in " \t\n\r":
            word = (word or "") + char
        elif word is not None:
            found.append(word)
            word = None
    assert not quote, f"a quote is open in {text!r}"
    return found if word is None else [*found, word]


def _unescape(rest: Iterator[str]) -> str:
    char = next(rest, "")
    if char in DIGITS:
        return chr(int("".join(next(rest) for _ in range(DIGITS[char])), 16))
    if char in set("01234567"):
        return chr(int(char + next(rest) + next(rest), 8))
    assert char in ESCAPES or char in set("\\\"'"), f"systemd does not know the escape \\{char}"
    return ESCAPES.get(char, char)


def expand_specifiers(text: str) -> str:
    assert "%" not in text.replace("%%", ""), f"systemd would replace a specifier in {text!r}"
    return text.replace("%%", "%")


@lru_cache(500)
def unit_commands(path: str, content: str, used: tuple[tuple[str, str], ...]) -> list[Any]:
    """Returns the command lines of a unit with its drop-ins and environment, as systemd starts them."""
    files = dict(used)
    texts = [content, *(text for name, text in sorted(files.items()) if name.startswith(f"{path}.d/"))]
    everything = [each for text in texts for each in directives(text)]
    environment: dict[str, str] = {}
    for name, value in everything:
        if name == "Service.Environment":
            pairs = (expand_specifiers(word).partition("=") for word in split_words(value))
            environment |= {key: text for key, _, text in pairs}
    for name, value in everything:
        if name == "Service.EnvironmentFile":
            environment |= parse_environment(files[expand_specifiers(value)])
    commands = []
    for name, value in everything:
        if name.startswith("Service.Exec"):
            words = [expand_specifiers(word) for word in split_words(value)]
            program = words[0].lstrip("@-:+!")
            arguments = [argument for word in words[1:] for argument in expand_variables(word, environment)]
            commands.append(
                [name, words[0].removesuffix(program), parse_program(program), parse_arguments(arguments)]
            )
    return commands


def parse_program(path: str) -> str:
    assert path.startswith("/"), path
    return path


def expand_variables(word: str, environment: Mapping[str, str]) -> list[str]:
    """Replaces `$NAME`, a word of its own, by the words of the value; `${NAME}` by the value; and `$$` by `$`."""
    if whole := re.fullmatch(r"\$([A-Za-z0-9_]+)", word):
        return split_words(environment[whole[1]])

    def expanded(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else environment[found[1]]

    return [re.sub(r"\$\$|\$\{([A-Za-z0-9_]*)\}", expanded, word)]


def parse_arguments(arguments: list[str]) -> dict[str, Any]:
    """Returns the options of a command line by name, and its other arguments."""
    options: dict[str, Any] = {"arguments": [each for each in arguments if not re.match("-.*=", each, re.DOTALL)]}
    for each in arguments:
        name, equals, value = each.partition("=")
        if equals and name.startswith("-"):
            assert name not in options, f"{name} is set twice"
            options[name] = OPTIONS.get(name, str)(value)
    return options


def parse_pairs(value: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in value.split(","))


def parse_server(value: str) -> list[Any]:
    """Parses the address of the API server, whose query has the options of node-problem-detector."""
    return [value.partition("?")[0], parse_qs(urlsplit(value).query, strict_parsing=True), urlsplit(value).fragment]


OPTIONS: dict[str, Callable[[str], Any]] = {
    "--node-labels": parse_pairs,
    "--register-with-taints": lambda value: [re.split("[=:]", taint) for taint in value.split(",")],
    "--apiserver-override": parse_server,
    "--config.system-log-monitor": lambda value: value.split(","),
}


def parse_environment(content: str) -> dict[str, str]:
    """Parses an environment file of systemd, without the forms that the agent never writes: quotes inside a value."""
    found: dict[str, str] = {}
    for name, value in re.findall(r'(?m)^(?![#;])\s*([^=\n]*)=[ \t]*("(?:[^"\\]|\\.)*"|[^\n]*)$', content):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name), f"systemd would ignore {name!r}"
        if value.startswith('"'):
            assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', value, re.DOTALL), value
            # In quotes, a backslash before another character stays.
            found[name] = re.sub(r'\\(["\\`$])', r"\1", value[1:-1])
        else:
            assert value[:1] != "'", value
            found[name] = re.sub(r"\\(.)", r"\1", value).rstrip()
    entries = [line for line in content.splitlines() if line.strip() and line.lstrip()[0] not in "#;"]
    assert len(found) == len(entries), f"a value has several lines: {entries}"
    return found


def parse_lists(content: str) -> dict[str, Any]:
    """Parses an environment file whose values programs split at commas."""
    return {name: SPLIT.get(name, str)(value) for name, value in parse_environment(content).items()}


SPLIT: dict[str, Callable[[str], Any]] = {
    "NO_PROXY": lambda value: value.split(","),
    "KUBELET_NODE_LABELS": parse_pairs,
}


# YAML, JSON and TOML


class KubernetesLoader(yaml.CSafeLoader):
    """YAML as the programs of Kubernetes read it: unlike PyYAML, `y` and `n` are booleans, `1e+3` is a number."""


KubernetesLoader.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
KubernetesLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))
KubernetesLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]*\.?[0-9]+([eE][-+][0-9]+)?$"), list("-+.0123456789")
)


def parse_yaml(content: str) -> Any:
    return yaml.load(content, KubernetesLoader)  # noqa: S506 - a safe loader


def parse_arc_settings(content: str) -> Any:
    found = parse_json(content)
    return {**found, "tags": parse_pairs(found["tags"]) if "tags" in found else {}}


def parse_json(content: str) -> Any:
    return json.loads(content, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs)), "a name occurs twice"
    return dict(pairs)


def parse_toml(content: str) -> Any:
    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(content)


# Others


def parse_shell(content: str) -> list[str]:
    """Returns the words and operators of a shell script. `$` and backquotes that the shell expands are marked."""
    found: list[str] = []
    word: str | None = None
    rest = re.finditer(
        r"""(?P<comment>(?<![^\s;&|<>()])\#[^\n]*)|'(?P<single>[^']*)'|\\(?P<escaped>.)|(?P<double>"(?:[^"\\]|\\.)*")"""
        r"""|(?P<space>[ \t]+)|(?P<operator>[\n;&|<>()])|(?P<expanded>[$`])|(?P<plain>.)""",
        content,
        re.DOTALL,
    )
    for each in rest:
        kind, text = str(each.lastgroup), str(each[str(each.lastgroup)])
        if kind in {"comment", "space", "operator"}:
            found += [] if word is None else [word]
            found += [text] if kind == "operator" else []
            word = None
            continue
        if kind == "double":
            text = re.sub(r"\\([$`\"\\])|([$`])", lambda it: it[1] or f"{EXPANDED}{it[2]}", text[1:-1])
        word = (word or "") + (f"{EXPANDED}{text}" if kind == "expanded" else text)
    return found if word is None else [*found, word]


def parse_openvpn(content: str) -> list[list[str]]:
    """Returns the directives with their arguments; a block in angle brackets is one."""
    found: list[list[str]] = []
    lines = iter(content.split("\n"))
    for line in lines:
        if block := re.fullmatch(r"<([\w-]+)>", line.strip()):
            text = "\n".join(iter(lambda end=f"</{block[1]}>": (each := next(lines)) != end and each, False))  # type: ignore[misc]
            found.append([block[1], text])
        elif line.strip() and line.lstrip()[0] not in "#;":
            found.append(split_words(line))
    return found


def parse_lines(content: str) -> list[str]:
    return [line.strip() for line in content.split("\n") if line.strip() and line.lstrip()[0] not in "#;"]


def parse_sysctl(content: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in parse_lines(content))}


def parse_hosts(content: str) -> list[list[str]]:
    return [fields for line in content.split("\n") if (fields := line.partition("#")[0].split())]


def parse_pem(content: str) -> list[str]:
    """Returns the certificates. Text around them is a comment."""
    return re.findall(r"-----BEGIN CERTIFICATE-----\s([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----", content)


def parse_apt_source(content: str) -> list[dict[str, Any]]:
    """Parses a list of one-line sources: `deb [option=value ...] URL suite component ...`."""
    found = []
    for line in content.split("\n"):
        entry = re.sub(r"#.*", "", line).strip()
        if not entry:
            continue
        kind, options, rest = re.fullmatch(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(.*)", entry).groups()  # type: ignore[union-attr]
        url, suite, *components = rest.split()
        settings = dict(each.split("=") for each in (options or "").split())
        found.append({"type": kind, "options": settings, "url": url, "suite": suite, "components": components})
    return found


def parse_apt_conf(content: str) -> dict[str, str]:
    """Parses the lines `Name "value";`. A value cannot contain a quote."""
    found = {}
    for line in parse_lines(content.replace("#clear ", "clear ")):
        entry = re.fullmatch(r'(clear )?([A-Za-z:_-]+)(?: "([^"]*)")?;', line)
        assert entry, f"apt would not read {line!r} as one setting"
        assert entry[2] not in found
        found[entry[2]] = entry[3]
    return found


PARSERS: dict[str, Callable[[str], Any]] = {
    "*.service": parse_unit,
    "*.service.d/*.conf": parse_unit,
    "/etc/containerd/config.toml": parse_toml,
    "/etc/containerd/certs.d/*/hosts.toml": parse_toml,
    "/etc/containerd/proxy.env": parse_lists,
    "/etc/default/kubelet": parse_lists,
    "/etc/default/kubelet-node": parse_lists,
    "*/config.yaml": parse_yaml,
    "*/kubeconfig": parse_yaml,  # a line in the file that the kubelet writes
    "*/bootstrap-kubeconfig": parse_json,
    "*/identity.json": parse_json,
    "*.conflist": parse_json,
    "/run/aks-flex-node-arc.json": parse_arc_settings,
    "*/ca.crt": parse_pem,
    "*/token.sh": parse_shell,
    "*/agent/launch": parse_shell,
    "*/vpn/up": parse_shell,
    "*/vpn/client.conf": parse_openvpn,
    "/etc/hosts": parse_hosts,
    "/etc/modules-load.d/*.conf": parse_lines,
    "/etc/sysctl.d/*.conf": parse_sysctl,
    "*/sources.list": parse_apt_source,
    "*/apt.conf": parse_apt_conf,
}
