"""Tests of what the provider's image takes from Debian packages, with packages made for the test."""

from __future__ import annotations

import io
import tarfile

from rp_image.image_files import BUNDLE, system_files
from rp_image.image_packages import DebianArchive, DebianPackage

from aks_flex_lab.images.builder import LayerFile, LayerLink


def package(name: str, *files: tuple[str, bytes, int], links: dict[str, str] | None = None) -> DebianPackage:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        for path, content, mode in files:
            member = tarfile.TarInfo(f"./{path}")
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(f"./{path}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    control = f"Package: {name}\nVersion: 1.0+deb13u1\nArchitecture: amd64\n"
    return DebianPackage(control, out.getvalue(), "0" * 64)


def test_programs_and_documents_of_packages_are_left_out() -> None:
    kept = system_files(
        [
            package(
                "one",
                ("usr/bin/sh", b"ELF", 0o755),
                ("usr/sbin/update", b"#!/bin/sh", 0o755),
                ("usr/share/man/man1/one.1", b"", 0o644),
                ("usr/lib/python3.13/lib-dynload/_curses.so", b"ELF", 0o644),
                ("usr/lib/x86_64-linux-gnu/libone.so.1.0", b"ELF", 0o644),
                ("usr/share/doc/one/copyright", b"free", 0o644),
                links={"usr/lib/x86_64-linux-gnu/libone.so.1": "libone.so.1.0", "bin": "usr/bin"},
            )
        ]
    )

    names = {name for name in kept if "one" in name or name == "bin"}
    assert names == {
        "bin",
        "usr/lib/x86_64-linux-gnu/libone.so.1",
        "usr/lib/x86_64-linux-gnu/libone.so.1.0",
        "usr/share/doc/one/copyright",
        "var/lib/dpkg/status.d/one",
    }
    assert kept["bin"] == LayerLink("bin", "usr/bin")


def test_setuid_and_write_bits_of_packages_are_removed() -> None:
    kept = system_files([package("one", ("usr/lib/one/helper", b"ELF", 0o6775))])

    assert kept["usr/lib/one/helper"] == LayerFile("usr/lib/one/helper", b"ELF", 0o755)


def test_certificates_are_one_file_in_the_order_of_their_names() -> None:
    folder = "usr/share/ca-certificates/mozilla"
    packages = [package("ca", (f"{folder}/b.crt", b"second\n", 0o644), (f"{folder}/a.crt", b"first\n", 0o644))]

    kept = system_files(packages)

    assert kept[BUNDLE] == LayerFile(BUNDLE, b"first\nsecond\n")
    assert not [name for name in kept if name.startswith(folder)]


def test_component_names_package_version_and_checksum() -> None:
    component = package("one").component()

    assert component["purl"] == "pkg:deb/debian/one@1.0%2Bdeb13u1?arch=amd64&distro=debian-13"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]


def test_archive_is_read_with_security_updates_and_the_keys_of_debian() -> None:
    plain, security = DebianArchive("http://a/debian", "http://b/security").sources().splitlines()

    assert plain.endswith("http://a/debian trixie main")
    assert security.endswith("http://b/security trixie-security main")
    assert all("signed-by=/usr/share/keyrings/debian-archive-keyring.gpg" in line for line in (plain, security))
