"""What a failed request means, in plain words."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.agent.artifacts.persistence import Interrupted
from aks_flex_node.agent.artifacts.sources import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3.exceptions import HTTPError


def explain(error: HTTPError | OSError, url: str, proxy: str | None, stall: float) -> Interrupted:
    """The first cause, down the chain of exceptions, that says something to a person."""
    from urllib3.exceptions import ProxyError

    chain = list(causes(error))
    through_proxy = proxy is not None and any(isinstance(each, ProxyError) for each in chain)
    who = f"the proxy {host_of(proxy)}" if proxy is not None and through_proxy else host_of(url)
    for each in reversed(chain):
        found = tell(each, who, stall)
        if found:
            return found
    return Interrupted(f"the connection to {who} failed ({type(chain[-1]).__name__})")


def tell(error: BaseException, who: str, stall: float) -> Interrupted | None:
    """One exception's meaning, if it has one."""
    if "Tunnel connection failed" in str(error):
        return Interrupted(f"{who} refused to connect us ({error})", again="failed: 4" not in str(error))
    for kinds, sentence, again in meanings():
        if isinstance(error, kinds):
            return Interrupted(
                sentence.format(who=who, name=who.rpartition(":")[0] or who, error=error, stall=stall), again=again
            )
    if isinstance(error, OSError) and error.strerror:
        return Interrupted(f"{who} cannot be reached ({error.strerror})")
    return None


Kinds: TypeAlias = tuple[type[BaseException], ...]


def meanings() -> Iterator[tuple[Kinds, str, bool]]:
    """Kinds of exceptions, what each says in plain words, and whether trying again may help."""
    from urllib3 import exceptions as urllib3

    untrusted = "the TLS certificate of {who} is not trusted ({error.verify_message})"
    yield (ssl.SSLCertVerificationError,), untrusted, False
    yield (urllib3.NameResolutionError, socket.gaierror), "the name {name} cannot be looked up (DNS)", True
    yield (urllib3.ConnectTimeoutError,), "{who} did not answer in time (timed out while connecting)", True
    yield (urllib3.ReadTimeoutError, TimeoutError), "{who} went silent for {stall:g} s (timed out)", True
    yield (ConnectionRefusedError,), "{who} refused the connection", True
    cut = (urllib3.IncompleteRead, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
    yield cut, "the connection to {who} was cut", True
    yield (ssl.SSLError,), "TLS with {who} failed ({error.reason})", True


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, what it was raised from or during, and the exceptions it holds, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        held = next((each for each in error.args if isinstance(each, BaseException)), None)
        error = getattr(error, "original_error", None) or error.__cause__ or held or error.__context__


def host_of(url: str) -> str:
    return without_secrets(url).partition("://")[2].partition("/")[0]
