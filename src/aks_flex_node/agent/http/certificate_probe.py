"""Reads the certificate chain that a server presents, without sending it a request: the TLS handshake is done
unverified and the connection is closed at once. Import this module late: urllib3 is slow to import.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, NoReturn

from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from aks_flex_node.agent.http.connections import make_pool, unverified_tls_context

if TYPE_CHECKING:
    from aks_flex_node.agent.http.download_options import DownloadOptions


class CertificatesReceived(Exception):  # noqa: N818 - it is what is asked for
    def __init__(self, chain: tuple[bytes, ...]) -> None:
        super().__init__("the server has shown its certificates")
        self.chain = chain


class CertificateProbeConnection(HTTPSConnection):
    """A connection that is over before anything can be sent."""

    def connect(self) -> NoReturn:
        try:
            super().connect()
            raise CertificatesReceived(certificate_chain(self.sock))
        finally:
            self.close()


class CertificateProbePool(HTTPSConnectionPool):
    ConnectionCls = CertificateProbeConnection


def presented_certificates(origin: str, sources: DownloadOptions, proxy: str | None) -> tuple[bytes, ...]:
    """All certificates that the server presents, in DER, its own first; none when they cannot be had."""
    pool = make_pool(sources, proxy, unverified_tls_context())
    pool.pool_classes_by_scheme = {**pool.pool_classes_by_scheme, "https": CertificateProbePool}
    try:
        pool.request("GET", f"{origin}/", redirect=False, retries=False)
    except CertificatesReceived as shown:
        return shown.chain
    finally:
        pool.clear()
    return ()


def certificate_chain(link: Any) -> tuple[bytes, ...]:
    """Python has had a public way to it since 3.13; the same was there before under a private name."""
    if hasattr(link, "get_unverified_chain"):
        return tuple(link.get_unverified_chain())
    inner: Any = getattr(link, "_sslobj", None)
    if not hasattr(inner, "get_unverified_chain"):
        return ()
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in inner.get_unverified_chain() or ())
