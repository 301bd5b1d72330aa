"""Reads the certificate chain of a server without sending a request: performs an unverified TLS handshake and closes
the connection immediately. Import this module late: urllib3 is slow to import.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, NoReturn

from aks_flex_node.agent.http.connections import make_pool, unverified_tls_context
from aks_flex_node.bounded_http.connections import BoundedHTTPSConnection, BoundedHTTPSPool
from aks_flex_node.bounded_http.limits import time_limit

if TYPE_CHECKING:
    from aks_flex_node.agent.http.download_options import DownloadOptions

PROBE_SECONDS = 60.0  # in total, also through a proxy


class CertificatesReceived(Exception):  # noqa: N818 - it is what is asked for
    def __init__(self, chain: tuple[bytes, ...]) -> None:
        super().__init__("received the certificates of the server")
        self.chain = chain


class CertificateProbeConnection(BoundedHTTPSConnection):
    """Closes the connection after the handshake, before anything is sent."""

    def connect(self) -> NoReturn:
        try:
            super().connect()
            raise CertificatesReceived(certificate_chain(self.sock))
        finally:
            self.close()


class CertificateProbePool(BoundedHTTPSPool):
    ConnectionCls = CertificateProbeConnection


def presented_certificates(origin: str, sources: DownloadOptions, proxy: str | None) -> tuple[bytes, ...]:
    """Returns the certificates that the server presents, in DER, leaf first, or an empty tuple if there are none."""
    pool = make_pool(sources, proxy, unverified_tls_context())
    pool.pool_classes_by_scheme = {**pool.pool_classes_by_scheme, "https": CertificateProbePool}
    try:
        with time_limit(PROBE_SECONDS):
            pool.request("GET", f"{origin}/", redirect=False, retries=False)
    except CertificatesReceived as shown:
        return shown.chain
    finally:
        pool.clear()
    return ()


def certificate_chain(link: Any) -> tuple[bytes, ...]:
    """Returns the unverified chain of a TLS socket. The method is public since Python 3.13 and private before."""
    if hasattr(link, "get_unverified_chain"):
        return tuple(link.get_unverified_chain())
    inner: Any = getattr(link, "_sslobj", None)
    if not hasattr(inner, "get_unverified_chain"):
        return ()
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in inner.get_unverified_chain() or ())
