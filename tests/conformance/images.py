"""The images of Kubernetes' end-to-end tests, made from programs of the same sources and from Debian packages.

The published images are based on Alpine, busybox and Debian. Here busybox has the commands of a shell, and packages
have the rest, at the paths that the tests use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.images.builder import (
    NOBODY,
    ContainerConfig,
    LayerDirectory,
    LayerEntry,
    LayerFile,
    LayerLink,
    OciImage,
    TaggedImage,
    busybox_applets,
    make_image,
    make_layer,
)
from aks_flex_lab.images.package_layer import package_entries
from aks_flex_lab.tools.catalog import go_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from aks_flex_lab.tools.toolbox import Toolbox

TESTS = "e2e-test-images"
NAMES: dict[str, tuple[str, ...]] = {
    f"{TESTS}/agnhost": ("2.55", "2.63.0"),
    f"{TESTS}/busybox": ("1.36.1-1", "1.37.0-1"),
    f"{TESTS}/glibc-dns-testing": ("2.0.0",),
    f"{TESTS}/kitten": ("1.8",),
    f"{TESTS}/nautilus": ("1.8",),
    f"{TESTS}/nginx": ("1.15-4", "1.27-0"),
    f"{TESTS}/nonewprivs": ("1.4",),
    f"{TESTS}/nonroot": ("1.5",),
    f"{TESTS}/sample-apiserver": ("1.29.2",),
    "etcd": ("3.6.8-0",),
    "pause": ("3.10.2",),
}
AGNHOST_PACKAGES = ("bash", "bind9-dnsutils", "curl", "iproute2", "libc-bin", "netcat-openbsd")
NGINX_PACKAGES = ("nginx-light", "libc-bin")
ETCD_VERSION = go_tool("etcd").version  # not Debian's, which has another version
ETCD_TOOL = go_tool("etcd").selector
SAMPLE_TOOL = go_tool("sample-apiserver").selector
# Debian's busybox lacks a change of its authors: its shell drops variables with names such as data-1. Tests that use
# such names run `sh`, and the one that compares a message of busybox runs /bin/sh.
SHELL_PACKAGE, SHELL = "bash-static", "usr/bin/bash-static"
SHELL_PATH = "/usr/local/bin/sh"
PASSWD = """\
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
"""
GROUP = """\
root:x:0:
www-data:x:33:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
"""
OS_RELEASE = b'NAME="Lab image, in place of one based on Alpine Linux"\n'  # a test reads it in a volume
NGINX_CONF = """\
worker_processes 1;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 256; }
http {
    include /etc/nginx/mime.types;
    access_log /dev/stdout;
    server {
        listen 80;
        location / { root /usr/share/nginx/html; index index.html; }
    }
}
"""


@dataclass(frozen=True)
class TestImages:
    __test__ = False  # not a test itself

    toolbox: Toolbox

    def named(self, names: Iterable[str]) -> Iterator[TaggedImage]:
        """Yields the images with these names, under each of their tags."""
        makers = {
            f"{TESTS}/agnhost": self.agnhost,
            f"{TESTS}/busybox": self.busybox,
            f"{TESTS}/glibc-dns-testing": self.glibc_dns_testing,
            f"{TESTS}/kitten": lambda: self.web_server("kitten"),
            f"{TESTS}/nautilus": lambda: self.web_server("nautilus"),
            f"{TESTS}/nginx": self.nginx,
            f"{TESTS}/nonewprivs": self.no_new_privileges,
            f"{TESTS}/nonroot": lambda: self.busybox(user="1234"),
            f"{TESTS}/sample-apiserver": self.sample_api_server,
            "etcd": self.etcd,
            "pause": self.pause,
        }
        for name in names:
            image = makers[name]()
            yield from (TaggedImage(name, tag, image) for tag in NAMES[name])

    def busybox(self, user: str = "") -> OciImage:
        return self.image(ContainerConfig(command=("sh",), user=user), *self.shell("bin"))

    def glibc_dns_testing(self) -> OciImage:
        return self.image(ContainerConfig(command=("bash",)), *self.dns_tools())

    def agnhost(self) -> OciImage:
        """Builds agnhost with a second name, which tests use as another entrypoint, and a certificate to serve."""
        porter = self.program("agnhost").parent / "test/images/agnhost/porter"
        return self.image(
            ContainerConfig(entrypoint=("/agnhost",), command=("pause",)),
            *self.dns_tools(),
            LayerFile("/agnhost", self.program("agnhost"), 0o755),
            LayerLink("/agnhost-2", "agnhost"),
            LayerDirectory("/uploads"),
            *(LayerFile(f"/{name}", porter / name) for name in ("localhost.crt", "localhost.key")),
        )

    def web_server(self, name: str) -> OciImage:
        folder = self.program("agnhost").parent / f"test/images/{name}/html"
        return self.image(
            ContainerConfig(entrypoint=("/agnhost",), command=("test-webserver",)),
            *self.shell("bin"),
            LayerFile("/agnhost", self.program("agnhost"), 0o755),
            *(LayerFile(f"/{path.name}", path) for path in sorted(folder.iterdir())),
            LayerFile("/etc/os-release", OS_RELEASE),
        )

    def nginx(self) -> OciImage:
        return self.image(
            ContainerConfig(command=("nginx", "-g", "daemon off;")),
            *self.shell("usr/bin"),
            *package_entries(NGINX_PACKAGES, self.toolbox.cache),
            LayerFile("/etc/nginx/nginx.conf", NGINX_CONF.encode()),
        )

    def etcd(self) -> OciImage:
        program = LayerFile("/usr/local/bin/etcd", self.toolbox.path("etcd", "etcd", ETCD_VERSION), 0o755)
        return self.image(ContainerConfig(command=("etcd",)), program, LayerDirectory("/tmp", 0o1777))  # noqa: S108

    def no_new_privileges(self) -> OciImage:
        """Builds the image whose program has the set-user-ID bit: it prints whom it runs as."""
        return self.image(
            ContainerConfig(command=("nnp",)),
            *self.shell("bin"),
            LayerFile("/usr/local/bin/nnp", self.program("nonewprivs"), 0o6755),
        )

    def sample_api_server(self) -> OciImage:
        return self.image(
            ContainerConfig(entrypoint=("/sample-apiserver",)),
            *self.shell("bin"),
            LayerFile("/sample-apiserver", self.toolbox.path("sample-apiserver", "sample-apiserver"), 0o755),
        )

    def pause(self) -> OciImage:
        program = LayerFile("/pause", self.toolbox.path("pause", "pause"), 0o755)
        return self.image(ContainerConfig(entrypoint=("/pause",), user=NOBODY), program)

    def dns_tools(self) -> list[LayerEntry]:
        """Returns a shell, `dig`, `curl`, `nc`, `ip` and `ss`; the packages replace commands of busybox."""
        packages = package_entries(AGNHOST_PACKAGES, self.toolbox.cache)
        # The shell of busybox prefers its own commands to those in the path.
        links = (LayerLink("/usr/bin/sh", "bash"), LayerLink("/usr/bin/nc", "nc.openbsd"))
        return [*self.shell("usr/bin"), *packages, *links]

    def shell(self, directory: str) -> list[LayerEntry]:
        """Returns a shell and the commands of busybox in one directory, as in its own image, and the users."""
        busybox = self.toolbox.path("busybox", "busybox")
        commands = {path.rsplit("/", 1)[-1] for path in busybox_applets(busybox)} - {"busybox"}
        entries = package_entries((SHELL_PACKAGE,), self.toolbox.cache)
        shell = next(entry for entry in entries if isinstance(entry, LayerFile) and entry.path == SHELL)
        return [
            LayerFile(SHELL_PATH, shell.content, 0o755),
            LayerFile(f"/{directory}/busybox", busybox, 0o755),
            *(LayerLink(f"/{directory}/{name}", "busybox") for name in sorted(commands)),
            LayerFile("/etc/passwd", PASSWD.encode()),
            LayerFile("/etc/group", GROUP.encode()),
            LayerDirectory("/tmp", 0o1777),  # noqa: S108 - the image's own
            LayerDirectory("/root", 0o700),
            LayerDirectory("/run"),
        ]

    def program(self, name: str) -> Path:
        return self.toolbox.path("kubernetes-e2e", name)

    def image(self, start: ContainerConfig, *entries: LayerEntry) -> OciImage:
        return make_image(make_layer(entries), start, self.toolbox.arch)
