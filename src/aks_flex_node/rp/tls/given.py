"""Certificate and key in files that somebody else keeps: a person, certbot, or a Secret of Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files
from aks_flex_node.rp.tls import chains

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.rp.tls.chains import Chain

EVERYBODY = 0o007  # a group may read a server's key: Debian's ssl-cert, and Kubernetes' fsGroup, work that way


@dataclass(frozen=True)
class Given:
    certificate: Path  # with what vouches for it after it
    key: Path

    def current(self, now: float) -> Chain:
        names = (str(self.certificate), str(self.key))
        chain = chains.read(self._public(), private_files.read(self.key, EVERYBODY), names)
        chains.check(chain, names, now)
        return chain

    def _public(self) -> bytes:
        try:
            return self.certificate.read_bytes()
        except OSError as error:
            raise ConfigError(
                "tls-file-invalid", f"{self.certificate} cannot be read: {error.strerror}.", "Check the path."
            ) from error
