"""Builds the Debian package `azcmagent`: files, users and services where the real package has them."""

from __future__ import annotations

import json
from pathlib import Path

from aks_flex_lab import network
from aks_flex_lab.azcmagent.azcm.agent_state import VERSION
from aks_flex_lab.processes import run

AZCM_SOURCES = Path(__file__).parent / "azcm"
CLOUD = json.dumps({"management": network.MANAGEMENT_URL, "login": network.LOGIN_URL})
CONTROL = f"""Package: azcmagent
Version: {VERSION}
Architecture: all
Maintainer: aks-flex-lab <lab@{network.DOMAIN}>
Depends: python3, systemd, passwd
Section: admin
Priority: optional
Description: stand-in for the Azure Connected Machine agent
 Connects a machine of the lab with the lab's own Azure.
"""
PROGRAM = """#!/usr/bin/python3 -IB
import sys
sys.path.insert(0, "/opt/azcmagent/lib")
from azcm.{module} import main
main()
"""
PROGRAMS = {
    "opt/azcmagent/bin/azcmagent": "azcmagent_cli",
    "opt/azcmagent/bin/himds": "himds",
    "opt/GC_Ext/GC/gc_linux_service": "idle_service",
    "opt/GC_Service/GC/gc_linux_service": "idle_service",
}
UNIT = """[Unit]
Description={title}
After=network.target

[Service]
{user}ExecStart={program}
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""
UNITS = {
    "himdsd": ("Azure Connected Machine Agent Service", "/opt/azcmagent/bin/himds", "User=himds\nGroup=himds\n"),
    "gcad": ("GC Arc Service", "/opt/GC_Service/GC/gc_linux_service", ""),
    "extd": ("Extension Service", "/opt/GC_Ext/GC/gc_linux_service", ""),
}
# Tells services that start later the endpoint of the machine's identity.
ENVIRONMENT = """[Manager]
DefaultEnvironment="IMDS_ENDPOINT=http://localhost:40342" \
"IDENTITY_ENDPOINT=http://localhost:40342/metadata/identity/oauth2/token"
"""
NAMES = " ".join(f"{name}.service" for name in UNITS)
# As the real package: users and directories of the services remain after a purge.
SCRIPTS = {
    "postinst": f"""#!/bin/sh
set -e
if [ "$1" = configure ]; then
    getent group himds >/dev/null || groupadd --system himds
    getent passwd himds >/dev/null || useradd --system --gid himds --home-dir /var/opt/azcmagent \
--no-create-home --shell /usr/sbin/nologin himds
    install -d -o himds -g himds -m 0755 /var/opt/azcmagent /var/opt/azcmagent/log
    install -d -o himds -g himds -m 0750 /var/opt/azcmagent/tokens /var/opt/azcmagent/certs
    install -d -m 0755 /etc/opt/azcmagent
    systemctl daemon-reload
    systemctl enable --quiet {NAMES}
    systemctl start {NAMES}
fi
""",
    "prerm": f"""#!/bin/sh
set -e
if [ "$1" = remove ]; then
    systemctl disable --quiet --now {NAMES} || true
fi
""",
    "postrm": """#!/bin/sh
set -e
if [ "$1" = remove ] || [ "$1" = purge ]; then
    systemctl daemon-reload || true
fi
""",
}


def sources() -> list[tuple[str, bytes]]:
    """Returns the sources of the modules that run on machines."""
    return [(path.name, path.read_bytes()) for path in sorted(AZCM_SOURCES.glob("*.py"))]


def package_recipe() -> bytes:
    """Returns all contents of the package, as the key of its cache."""
    inputs = json.dumps([CONTROL, PROGRAM, PROGRAMS, UNIT, UNITS, ENVIRONMENT, SCRIPTS, CLOUD])
    return inputs.encode() + b"".join(name.encode() + content for name, content in sources())


def build_package(directory: Path, package: Path) -> None:
    """Builds the package in a temporary directory."""
    for name, content in sources():
        _write(directory / "opt/azcmagent/lib/azcm" / name, content)
    _write(directory / "opt/azcmagent/etc/cloud.json", CLOUD.encode())
    for target, module in PROGRAMS.items():
        _write(directory / target, PROGRAM.format(module=module).encode(), 0o755)
    for name, (title, program, user) in UNITS.items():
        text = UNIT.format(title=title, program=program, user=user)
        _write(directory / "usr/lib/systemd/system" / f"{name}.service", text.encode())
    _write(directory / "usr/lib/systemd/system.conf.d/azcmagent.conf", ENVIRONMENT.encode())
    (directory / "usr/bin").mkdir(parents=True)
    (directory / "usr/bin/azcmagent").symlink_to("/opt/azcmagent/bin/azcmagent")
    _write(directory / "DEBIAN/control", CONTROL.encode())
    for name, text in SCRIPTS.items():
        _write(directory / "DEBIAN" / name, text.encode(), 0o755)
    for folder in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        folder.chmod(0o755)  # independent of the umask
    run("dpkg-deb", "--root-owner-group", "--build", directory, package)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
