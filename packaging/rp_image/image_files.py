"""The files of the image: what is taken from the packages, and what the image adds."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.images.builder import LayerDirectory, LayerFile, LayerLink
from aks_flex_lab.processes import run
from release.checkout import HOME, tracked_files
from release.program_archives import PROVIDER
from rp_image.image_packages import PYTHON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_lab.images.builder import LayerEntry
    from release.program_archives import PackageTree
    from rp_image.image_packages import DebianPackage

    Files = dict[str, LayerFile | LayerLink]

USER = 10001  # numeric, so that Kubernetes can verify runAsNonRoot
STATE = "var/lib/aks-flex-rp"
PROGRAM = "opt/aks-flex-rp"
CERTIFICATES = "usr/share/ca-certificates/"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
KEPT = re.compile(
    r"(usr/lib/|usr/lib64/|usr/bin/python|lib64$|lib$|bin$|sbin$|usr/share/common-licenses/|etc/os-release$)"
    r"|etc/debian_version$|usr/share/doc/[^/]+(/copyright)?$"
)
# Modules without a use here, and those whose libraries the image does not have.
LEFT_OUT = re.compile(
    r"usr/lib/(binfmt\.d|[^/]+/(gconv|engines-3|audit|ossl-modules))/"
    rf"|usr/lib/python{PYTHON}/(ensurepip|idlelib|turtledemo|pydoc_data|tkinter|curses|dbm|_pyrepl|turtle\.py|sitecustomize)"
    rf"|usr/lib/python{PYTHON}/lib-dynload/(_curses|_dbm|_gdbm|_tkinter|readline)"
)
ACCOUNT = f"aks-flex-rp:x:{USER}:{USER}:AKS Flex Node resource provider:/{STATE}:/usr/sbin/nologin\n"
OWN_FILES = {
    "etc/passwd": ACCOUNT,  # root has no account
    "etc/group": f"aks-flex-rp:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def system_files(packages: Sequence[DebianPackage]) -> Files:
    """Returns the files of the packages that the service needs, without a shell, and the list of the packages."""
    # Scanners of vulnerabilities read the packages of an image without dpkg in status.d.
    listed = {f"var/lib/dpkg/status.d/{package.name}": package.control for package in packages}
    found = _plain_files({path: text.encode() for path, text in (*OWN_FILES.items(), *listed.items())})
    authorities: dict[str, bytes] = {}
    for package in packages:
        for path, member, content in package.members():
            if path.startswith(CERTIFICATES):
                authorities[path] = content
            elif KEPT.match(path) and not LEFT_OUT.match(path):
                found[path] = (
                    LayerLink(path, member.linkname)
                    if member.issym()
                    else LayerFile(path, content, member.mode & (0o644 if path.endswith(".py") else 0o755))
                )
    found |= _plain_files({BUNDLE: b"".join(authorities[name] for name in sorted(authorities))})
    for path, target in {"usr/bin/python3": f"python{PYTHON}", "usr/lib/ssl/cert.pem": f"/{BUNDLE}"}.items():
        found[path] = LayerLink(path, target)
    return found


def library_files(tree: PackageTree) -> Files:
    """Returns the Python packages, below the program's own directory."""
    return _plain_files({f"{PROGRAM}/lib/{name}": path.read_bytes() for name, path in tree.files().items()})


def program_files() -> Files:
    sources = PROVIDER.own_sources(tracked_files(PROVIDER.packages))
    contents = {f"{PROGRAM}/lib/{name}": path.read_bytes() for name, path in sources.items()}
    contents[f"usr/share/doc/{PROVIDER.name}/LICENSE"] = (HOME / "LICENSE").read_bytes()
    command = f"{PROGRAM}/bin/{PROVIDER.name}"
    return {**_plain_files(contents), command: LayerFile(command, PROVIDER.launcher().encode(), 0o755)}


def _plain_files(contents: Mapping[str, bytes]) -> Files:
    return {path: LayerFile(path, content) for path, content in contents.items()}


def mount_points() -> tuple[LayerEntry, ...]:
    """Returns the directories of the kernel's file systems, of the configuration, and of what the service writes."""
    plain = (LayerDirectory(path) for path in ("dev", "proc", "sys", "etc/aks-flex-rp"))
    return LayerDirectory(STATE, 0o700, USER), LayerDirectory("tmp", 0o1777), *plain


def with_bytecode(layers: list[Files], interpreter: Mapping[str, LayerFile | LayerLink]) -> list[Files]:
    """Returns the layers with compiled modules, because the root file system is read-only when they are imported.

    `interpreter` are the files of a Python for this host. Its compiled modules are valid for all architectures.
    """
    with tempfile.TemporaryDirectory() as work:
        host, target = Path(work) / "host", Path(work) / "target"
        _write(interpreter, host)
        for layer in layers:
            _write(layer, target)
        _compile(host, target)
        return [layer | _compiled(layer, target) for layer in layers]


def _write(files: Mapping[str, LayerFile | LayerLink], folder: Path) -> None:
    for name, entry in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, LayerLink):
            path.symlink_to(entry.target)
        elif isinstance(entry.content, bytes):
            path.write_bytes(entry.content)
            path.chmod(entry.mode)


def _compile(host: Path, target: Path) -> None:
    """Compiles all modules with one process in a fixed order: the same sources give the same bytes."""
    [loader] = (host / "usr").glob("lib*/ld-linux-*.so.*")
    libraries = next((host / "usr" / "lib").glob("*-linux-gnu"))
    python = (loader, "--library-path", libraries, host / "usr" / "bin" / f"python{PYTHON}", "-S", "-B")
    options = ("-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", target, "-p", "/")
    folders = (target / "usr" / "lib" / f"python{PYTHON}", target / PROGRAM / "lib")
    env = {"PYTHONHOME": str(host / "usr"), "PYTHONHASHSEED": "0"}
    run(*python, "-m", "compileall", *options, *folders, env=env, timeout=600)


def _compiled(layer: Files, target: Path) -> Files:
    modules = [Path(name) for name, entry in layer.items() if name.endswith(".py") and isinstance(entry, LayerFile)]
    names = [
        str(each.parent / "__pycache__" / f"{each.stem}.cpython-{PYTHON.replace('.', '')}.pyc") for each in modules
    ]
    return _plain_files({name: (target / name).read_bytes() for name in names})
