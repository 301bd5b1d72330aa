"""Builds the Debian package: its files, control data, man pages and shell completions."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.reference.errors import errors_page
from typer._completion_shared import get_completion_script
from typer.main import get_command

from aks_flex_node.agent.cli.app import app
from aks_flex_node.agent.components.service import packaged_unit
from aks_flex_node.agent.config.render import config_template
from deb.archive_formats import PackageEntry, ar, tar_gz
from deb.wheels import package_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator


COMMAND = "aks-flex-node"
COMPLETIONS = {
    "bash": f"usr/share/bash-completion/completions/{COMMAND}",
    "zsh": f"usr/share/zsh/vendor-completions/_{COMMAND}",
    "fish": f"usr/share/fish/vendor_completions.d/{COMMAND}.fish",
}
EXITS = "`aks-flex-node explain NAME` explains an error. /usr/share/doc/aks-flex-node/errors.md has all errors."

CommandPath = tuple[str, ...]  # the names of a command and its parents


def completion_scripts() -> dict[str, str]:
    """Returns the completion scripts by path."""
    options = {"prog_name": COMMAND, "complete_var": "_AKS_FLEX_NODE_COMPLETE"}
    return {path: get_completion_script(shell=shell, **options) + "\n" for shell, path in COMPLETIONS.items()}


def man_pages(version: str, when: int) -> dict[str, str]:
    """Returns the man pages of the program and its commands by file name."""
    root = get_command(app)
    found = list(_commands(root, (COMMAND,), root.context_class(root, info_name=COMMAND)))
    head = f'{time.strftime("%Y-%m-%d", time.gmtime(when))}" "aks-flex-node {version}" "AKS Flex Node'
    return {f"{'-'.join(path)}.1": _page(path, context, head, _related(path, found)) for path, context in found}


def _commands(command: Any, path: CommandPath, context: Any) -> Iterator[tuple[CommandPath, Any]]:
    yield path, context
    for name, below in sorted(getattr(command, "commands", {}).items()):
        if not below.hidden:
            yield from _commands(below, (*path, name), below.context_class(below, info_name=name, parent=context))


def _related(path: CommandPath, found: list[tuple[CommandPath, Any]]) -> list[str]:
    """Returns the names of the parent page and the child pages."""
    names = [other for other, _ in found if other in {path[:-1], *(one for one, _ in found if one[:-1] == path)}]
    return ["-".join(name) for name in names if name]


def _page(path: CommandPath, context: Any, head: str, related: list[str]) -> str:
    name, command = "-".join(path), context.command
    text = inspect.cleandoc(command.help or "")
    lines = [f'.TH "{name.upper()}" "1" "{head}"', ".SH NAME"]
    lines += [f"{_escaped(name)} \\- {_escaped(_first(text))}", ".SH SYNOPSIS"]
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    lines += [f".B {_escaped(usage)}", ".SH DESCRIPTION", *_paragraphs(text), *_options(context)]
    lines += [".SH EXIT STATUS", _escaped(EXITS), ".SH SEE ALSO"]
    lines += [", ".join(f"\\fB{_escaped(one)}\\fR(1)" for one in related) or f"\\fB{COMMAND}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _first(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\b", "").split("\n\n"):
        yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _options(context: Any) -> Iterator[str]:
    records = [record for each in context.command.get_params(context) if (record := each.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for option, meaning in records:
        yield from (".TP", f"\\fB{_escaped(option)}\\fR", _escaped(" ".join(meaning.split())))


def _escaped(text: str) -> str:
    """Escapes text for roff, including a leading dot or quote."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", plain)


MACHINE_FILES = Path(__file__).parent / "machine"
NAME = "aks-flex-node"
LIB = f"usr/lib/{NAME}"
DOC = f"usr/share/doc/{NAME}"
UNIT = f"usr/lib/systemd/system/{NAME}.service"
OVERRIDES = f"""# The agent requires systemd, which also runs its jobs.
{NAME}: package-supports-alternative-init-but-no-init.d-script [{UNIT}]
"""
EXAMPLE = f"etc/{NAME}/config.yaml.example"
MAINTAINER = "The AKS Flex Node authors <aksflexnode@users.noreply.github.com>"
HOMEPAGE = "https://github.com/Azure/AKSFlexNode"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
CONTROL = """Package: {name}
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: python3 (>= 3.10), python3 (<< 3.14)
Recommends: iptables, conntrack, ethtool, socat
Suggests: openvpn
Section: admin
Priority: optional
Homepage: {homepage}
Description: turn this machine into a worker node of an AKS cluster
 The agent of AKS Flex Node joins a machine outside Azure to an AKS cluster as
 a worker node with one command, manages the node, and removes it again with
 another command.
 .
 Installing the package starts and enables no service. The machine becomes a
 node only when you run the join command.
"""


@dataclass(frozen=True)
class PackageBuild:
    """Parameters of a package build."""

    version: str
    arch: str
    timestamp: int  # modification time of all files
    checkout: Path
    wheels: Path

    @property
    def debian_version(self) -> str:
        """The version in dpkg's format, in which 1.3.0~rc1 is older than 1.3.0."""
        return re.sub(r"(?<=\d)(a|b|rc)(?=\d)", r"~\1", self.version)

    @property
    def file_name(self) -> str:
        """The file name, without a tilde: GitHub replaces it in file names."""
        return f"{NAME}_{self.version}_{self.arch}.deb"


def build_package(build: PackageBuild) -> bytes:
    """Returns the content of the .deb file."""
    files = package_files(build)
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar_gz(control_files(build, files), build.timestamp),
        "data.tar.gz": tar_gz(files, build.timestamp),
    }
    return ar(members, build.timestamp)


def package_files(build: PackageBuild) -> dict[str, PackageEntry]:
    """Returns the files that the package installs, by path."""
    wheels = package_wheels(build.wheels, build.checkout / "src/aks_flex_node", build.version, build.timestamp)
    manual = man_pages(build.version, build.timestamp)
    return {
        f"usr/bin/{NAME}": PackageEntry((MACHINE_FILES / NAME).read_bytes(), 0o755),
        f"{LIB}/environments.py": PackageEntry((MACHINE_FILES / "environments.py").read_bytes()),
        **{f"{LIB}/wheels/{name}": PackageEntry(content) for name, content in wheels.items()},
        **{f"usr/share/man/man1/{name}.gz": PackageEntry(_gzip(text.encode())) for name, text in manual.items()},
        **{path: PackageEntry(text.encode()) for path, text in completion_scripts().items()},
        UNIT: PackageEntry(packaged_unit(f"/usr/bin/{NAME}").encode()),
        f"usr/share/lintian/overrides/{NAME}": PackageEntry(OVERRIDES.encode()),
        EXAMPLE: PackageEntry(config_template().encode()),
        f"{DOC}/copyright": PackageEntry(_copyright(build).encode()),
        f"{DOC}/changelog.gz": PackageEntry(_gzip(_changelog(build).encode())),
        f"{DOC}/errors.md": PackageEntry(errors_page().encode()),
    }


def control_files(build: PackageBuild, files: dict[str, PackageEntry]) -> dict[str, PackageEntry]:
    """Returns control data and maintainer scripts of the package."""
    size = sum(-(-len(entry.content) // 1024) for entry in files.values())
    control = CONTROL.format(
        name=NAME, version=build.debian_version, arch=build.arch, maintainer=MAINTAINER, homepage=HOMEPAGE, size=size
    )
    sums = [f"{hashlib.md5(files[path].content).hexdigest()}  {path}\n" for path in sorted(files)]  # noqa: S324 - required by dpkg
    return {
        "control": PackageEntry(control.encode()),
        "conffiles": PackageEntry(f"/{EXAMPLE}\n".encode()),
        "md5sums": PackageEntry("".join(line for line in sums if EXAMPLE not in line).encode()),
        "triggers": PackageEntry((MACHINE_FILES / "triggers").read_bytes()),
        **{name: PackageEntry(_script(name, build), 0o755) for name in SCRIPTS},
    }


def _script(name: str, build: PackageBuild) -> bytes:
    return (MACHINE_FILES / name).read_bytes().replace(b"@VERSION@", build.debian_version.encode())


def _changelog(build: PackageBuild) -> str:
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(build.timestamp))
    entry = f"  * Release notes:\n    {HOMEPAGE}/blob/main/CHANGELOG.md"
    return f"{NAME} ({build.debian_version}) stable; urgency=medium\n\n{entry}\n\n -- {MAINTAINER}  {date}\n"


def _copyright(build: PackageBuild) -> str:
    """Returns the copyright file in machine-readable format. Each wheel contains its own licence."""
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
    title, _, text = (build.checkout / "LICENSE").read_text().strip().partition("\n\n")
    holder, _, terms = text.partition("\n\n")
    body = "\n".join(f" {line.strip() or '.'}" for line in terms.splitlines())
    holder = holder.removeprefix("Copyright (c) ")
    own = f"\nFiles: *\nCopyright: {holder}\nLicense: {'Expat' if title == 'MIT License' else title}\n{body}\n"
    note = f"Comment: The packages in /{LIB}/wheels contain their licences (*.dist-info).\n"
    return f"{head}Upstream-Name: {NAME}\nSource: {HOMEPAGE}\n{note}{own}"


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)
