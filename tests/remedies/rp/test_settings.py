"""The remedies of errors in the settings, keys and certificates of the service."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding

from aks_flex_rp.crypto.tls_certificates import SERVER_LIFETIME, CertificateFiles, create_ca, sign_server_certificate
from tests.remedies.catalogue import advice, command
from tests.remedies.rp.harness import fails, private, shell
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import serving

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.crypto.tls_certificates import CertificateChain
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings

NAMES = ("flex.example.com",)
DAY = 86400.0


@dataclass(frozen=True)
class Config:
    """The configuration file of a service."""

    file: Path

    def write(self, **settings: Any) -> tuple[str, str]:
        """Writes the settings and returns the option that names the file."""
        self.file.write_text(yaml.safe_dump(settings))
        return "--config", str(self.file)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path / "config.yaml")


@pytest.mark.remedy("service-config-invalid")
@pytest.mark.parametrize(
    ("text", "listed"),
    [("listen: nowhere\nport: 1\n", ["listen:", "port:"]), ("listen: [", []), ("a text", [])],
    ids=["settings", "syntax", "text"],
)
def test_listed_settings_are_corrected(somebody: Person, config: Config, text: str, listed: list[str]) -> None:
    config.file.write_text(text)
    said = fails(somebody, "service-config-invalid", "init", "--config", str(config.file)).err
    assert [each for each in listed if f"  {each}" not in said] == []

    advice("service-config-invalid", "Correct the settings that the message lists, then start the service again.")
    somebody.does("init", *config.write(listen="127.0.0.1:8443"))


@pytest.mark.remedy("admin-key-invalid")
def test_deleted_admin_key_is_created_again(made: ServiceSettings, clusters: list[ClusterInfo]) -> None:
    person = Person(made.state_dir)
    person.does("init")
    made.admin_key_file.write_text("a password of two lines\nand more\n")
    fails(person, "admin-key-invalid", "init")

    advice("admin-key-invalid", "Delete the file and start the service again. The service creates a new key.")
    made.admin_key_file.unlink()
    with serving(made, clusters) as service:
        assert service.admin.list().status == 200


@pytest.mark.remedy("private-file-permissions")
def test_secret_file_is_used_after_chmod(somebody: Person) -> None:
    somebody.does("init")
    keys = somebody.state / "keys"
    keys.chmod(0o640)
    fails(somebody, "private-file-permissions", "keys", "list")

    subprocess.run(command("private-file-permissions", "chmod", FILE=str(keys)), check=True)
    somebody.does("keys", "list")


@pytest.mark.remedy("encryption-keys-invalid")
def test_key_file_is_restored_or_created_for_new_service(somebody: Person, config: Config, tmp_path: Path) -> None:
    somebody.does("init")
    keys = somebody.state / "keys"
    backup = keys.read_text()
    for damaged in (backup[:-8] + "\n", "# no key\n"):
        private(keys, damaged)
        fails(somebody, "encryption-keys-invalid", "init")
    advice("encryption-keys-invalid", "Restore the key file or the variable from a backup.")
    private(keys, backup)
    somebody.does("init")

    new = private(tmp_path / "new-keys", "password\n")
    fails(somebody, "encryption-keys-invalid", "init", *config.write(keysFile=str(new)))
    private(new, shell("encryption-keys-invalid", "openssl rand") + "\n")
    somebody.does("init", *config.write(keysFile=str(new)))


@dataclass(frozen=True)
class TlsFiles:
    """The certificate files of a service, which another program maintains."""

    given: CertificateFiles
    authority: CertificateChain

    def issue(self, before: float = 0.0) -> CertificateChain:
        """Issues a certificate as of this many seconds ago."""
        return sign_server_certificate(self.authority, NAMES, time.time() - before)

    def write(self, chain: CertificateChain) -> None:
        self.given.certificate.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in chain.certificates))
        self.given.key.touch(0o600)
        self.given.key.write_bytes(chain.pem.partition(b"-----BEGIN CERTIFICATE")[0])

    def settings(self) -> dict[str, Any]:
        files = {"certificateFile": str(self.given.certificate), "keyFile": str(self.given.key)}
        return {"tls": files, "publicUrl": f"https://{NAMES[0]}:8443"}


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), create_ca(time.time()))
    files.write(files.issue())
    return files


@pytest.mark.remedy("tls-key-mismatch")
def test_matching_key_and_order_of_chain_are_accepted(somebody: Person, config: Config, tls: TlsFiles) -> None:
    option = config.write(**tls.settings())
    first, second = tls.issue(), tls.issue()
    tls.write(second)
    tls.given.key.write_bytes(first.pem.partition(b"-----BEGIN CERTIFICATE")[0])
    fails(somebody, "tls-key-mismatch", "init", *option)
    advice("tls-key-mismatch", "Use a certificate and a key that were issued together.")
    tls.write(first)
    somebody.does("init", *option)

    reverse = b"".join(each.public_bytes(Encoding.PEM) for each in reversed(first.certificates))
    tls.given.certificate.write_bytes(reverse)
    fails(somebody, "tls-key-mismatch", "init", *option)
    advice("tls-key-mismatch", "Put the server certificate first in the certificate file")
    tls.write(first)
    somebody.does("init", *option)


@pytest.mark.remedy("tls-certificate-expired")
def test_renewed_certificate_is_accepted(somebody: Person, config: Config, tls: TlsFiles) -> None:
    option = config.write(**tls.settings())
    tls.write(tls.issue(before=SERVER_LIFETIME.total_seconds() + DAY))
    fails(somebody, "tls-certificate-expired", "init", *option)

    advice("tls-certificate-expired", "Renew the certificate and replace the file.")
    tls.write(tls.issue())
    somebody.does("init", *option)


def test_wrong_file_or_name_in_the_settings_is_refused(somebody: Person, config: Config, tls: TlsFiles) -> None:
    fails(somebody, "private-file-unreadable", "backup", "x.tar", *config.write(databaseFile="/nowhere"))
    fails(somebody, "tls-name-invalid", "init", *config.write(tls={"names": ["bücher.example"]}))
    tls.given.certificate.write_bytes(b"\x30\x82 in DER")
    fails(somebody, "tls-file-invalid", "init", *config.write(**tls.settings()))
