"""The matrix of answers: each client against each behaviour of a server. Whatever the server does, a call ends, does
not use much memory, does not repeat itself often, and names the cause without secrets.

Memory is measured as the peak of the resident set over all calls of one client, which run at the same time.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import pki
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node import x509_builder
from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.preflight.interfaces import ProbeFailed
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.azure.transport import BoundedTransport
from aks_flex_node.errors import FlexError
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.clusters.client import ApiRefused
from tests.service.agent.daemon.fake_providers import serving
from tests.service.answers.behaviours import BEHAVIOURS
from tests.service.answers.clients import CANARY, CLIENTS, LIMITS, Believed, Place, cells

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Iterator

    from aks_flex_lab.pki import CertificatePair
    from tests.service.answers.clients import Client

PRODUCT_ERRORS = (FlexError, ProviderRequestError, ProbeFailed, ArmError, ApiStatusError, ApiRefused)
MAX_SECONDS = 40.0  # far above the limits of the tests, and far below "for ever"
MAX_BYTES = 96 << 20  # for two dozen calls at the same time
MAX_REQUESTS = 12  # of one call, with its retries
CLASS_NAME = re.compile(r"\b[A-Z]\w+(?:Error|Exception|Timeout|Disconnected)\b|object at 0x")


@pytest.fixture(scope="module")
def pairs(authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertificatePair]:
    other = CertificateAuthority(tmp_path_factory.mktemp("other-pki"))
    other.ensure()
    with pytest.MonkeyPatch.context() as patch:
        past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=2)
        period = x509_builder.ValidityPeriod(past, past + datetime.timedelta(days=1))
        patch.setattr(pki, "_period", lambda: period)
        expired = authority.issue("expired", "localhost", names=("localhost",))
    return {
        "good": authority.issue("localhost", "localhost", names=("localhost",)),
        "other": other.issue("localhost", "localhost", names=("localhost",)),
        "expired": expired,
    }


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in LIMITS:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(BoundedTransport, "sleep", lambda *_: None)


class Row:
    """The calls of one client against all behaviours."""

    def __init__(self, client: Client, pairs: dict[str, CertificatePair], ca_file: Path, room: Path) -> None:
        self._client, self._pairs, self._ca_file, self._room = client, pairs, ca_file, room

    def run(self) -> dict[str, str]:
        """Returns what is wrong, by behaviour."""
        names = list(cells(self._client, BEHAVIOURS))
        with ThreadPoolExecutor(1 if self._client.alone else len(names)) as pool:
            return {name: wrong for name, wrong in zip(names, pool.map(self._try, names), strict=True) if wrong}

    def _try(self, name: str) -> str:
        behaviour, asked = BEHAVIOURS[name], list[float]()

        def does(link: socket.socket, over: threading.Event) -> None:
            asked.append(time.monotonic())
            behaviour.does(link, over)

        room = self._room / re.sub(r"\W", "-", name)
        room.mkdir()
        pair = self._pairs[behaviour.certificate] if self._client.tls else None
        with serving(does, pair) as port:
            began = time.monotonic()
            described = self._describe(Place(port, self._ca_file, room))
            seconds = time.monotonic() - began
        is_wrongly_believed = isinstance(described, Believed) and name not in self._client.believes
        wrong = [f"it is believed: {described}"] if is_wrongly_believed else []
        wrong += [described] if CLASS_NAME.search(described) or CANARY in described or len(described) < 8 else []
        wrong += [f"took {seconds:.1f} s"] if seconds > MAX_SECONDS else []
        wrong += [f"{len(asked)} requests"] if len(asked) > MAX_REQUESTS else []
        return "; ".join(wrong)

    def _describe(self, place: Place) -> str:
        try:
            return self._client.call(place)
        except PRODUCT_ERRORS as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__module__}.{type(error).__name__}Exception: {error}"


@contextlib.contextmanager
def memory() -> Iterator[list[int]]:
    """Yields a list that gets the growth of the peak of the resident set."""
    grown: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    yield grown
    grown.append(_status("VmHWM") - before)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CLIENTS)
def test_every_answer_ends_is_bounded_and_is_explained(
    name: str, pairs: dict[str, CertificatePair], authority: CertificateAuthority, tmp_path: Path
) -> None:
    with memory() as grown:
        wrong = Row(CLIENTS[name], pairs, authority.certificate, tmp_path).run()
    assert not wrong, "\n".join(f"{behaviour}: {what}" for behaviour, what in wrong.items())
    assert grown[0] < MAX_BYTES, f"the resident set grew by {grown[0] >> 20} MiB"
