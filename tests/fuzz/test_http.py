"""Malformed requests to the service: each is rejected, or the connection is closed."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.api import connection_limits, http_messages
from tests.fuzz.mutations import damaged, json_values
from tests.fuzz.raw_http import Door, request
from tests.service.rp.api.bodies import token
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import PLANT, FakeClusters, known_clusters
from tests.service.rp.api.service_harness import PLENTY, running
from tests.service.rp.api.service_harness import settings as service_settings
from tests.service.rp.api.test_paging import sign_in
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = f"api-version={API_VERSION}"
NODES = f"{PLANT}/flexNodeConfig"
NODE = f"{NODES}/edge-1"
PAGE = f"/ui/nodes/{PLANT.subscription}/{PLANT.group}/{PLANT.name}/edge-1"
FORM = "Content-Type: application/x-www-form-urlencoded"
SMUGGLED = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
READS = (
    "/",
    "/audit",
    "/ui/audit",
    "/ui/audit.csv",
    "/ui/audit.json",
    "/ui/create",
    "/ui/sign-in",
    PAGE,
    NODES,
    NODE,
)
PARAMETERS = (
    *("before", "behind", "cluster", "name", "node", "order", "outcome", "page", "resource", "search", "since"),
    *(
        "sort",
        "state",
        "trouble",
        "until",
        "version",
        "what",
        "who",
        "next",
        "limit",
        "$filter",
        "$top",
        "$skipToken",
    ),
    *("step", "configUrl", "allowDowngrade", "api-version", "code", "error"),
)
HEADERS = (
    *("Authorization", "Cookie", "If-Match", "If-None-Match", "Prefer", "Origin", "Referer", "Sec-Fetch-Site"),
    *(
        "Content-Type",
        "X-Live",
        "X-Ms-Client-Request-Id",
        "X-Ms-Return-Client-Request-Id",
        "Accept",
        "Range",
        "Expect",
    ),
    *("Upgrade", "Accept-Encoding", "X-Forwarded-For", "Transfer-Encoding"),
)
FIELDS = (
    "csrf",
    "token",
    "key",
    "next",
    "name",
    "cluster",
    "nodeConfig-labels",
    "nodeConfig-taints",
    "nodeConfig-maxPods",
    "azureAuth-method",
    "rest",
    "etag",
    "to",
    "base",
    "downgrade",
)
ODD_TEXTS = ("", "-1", "0", "9" * 30, "1e999", "NaN", "%", "\0", "'", '"', "\\", "..", "\ud7ff", "é", "[", "a" * 5000)
odd = st.sampled_from(ODD_TEXTS) | st.text(max_size=30)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    room = tmp_path_factory.mktemp("service")
    authority = CertificateAuthority(room / "pki")
    authority.ensure()
    clusters = FakeClusters.of(known_clusters(base64.b64encode(authority.certificate.read_bytes()).decode()))
    with running(
        service_settings(room / "state", limits=PLENTY, keep_alive_seconds=1), clusters, Recording()
    ) as service:
        service.admin.put("edge-1", token(labels={"site": "hall-1"}))
        yield Door(service)
        assert service.admin.get("edge-1").status == 200  # the service still works


@pytest.fixture(scope="module")
def admin(door: Door) -> str:
    return f"Authorization: {door.service.admin.authorization}"


@pytest.fixture(scope="module")
def session(door: Door) -> str:
    return f"Cookie: {sign_in(door.service)}"


FRAMINGS = {
    "both a length and chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, and a length after them": "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    "a list of lengths": "Content-Length: 5, 6\r\n\r\nabcde",
    "a length below zero": "Content-Length: -5\r\n\r\n",
    "a length with a sign": "Content-Length: +5\r\n\r\nabcde",
    "a length in sixteens": "Content-Length: 0x5\r\n\r\nabcde",
    "a length without end": f"Content-Length: {'9' * 40}\r\n\r\n",
    "chunks by another name": "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks twice": "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks with a tab": "Transfer-Encoding:\tchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "a chunk of no size": "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a chunk below zero": "Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n",
    "a chunk without end": f"Transfer-Encoding: chunked\r\n\r\n{'F' * 20}\r\nabc",
    "a chunk that is longer than it says": "Transfer-Encoding: chunked\r\n\r\n1\r\nabcde\r\n0\r\n\r\n",
    "a folded header": "X-Folded: a\r\n Content-Length: 5\r\n\r\nabcde",
    "a folded length": "Content-Length:\r\n 5\r\n\r\nabcde",
    "a space before the colon": "Content-Length : 5\r\n\r\nabcde",
    "a header without a name": ": 5\r\n\r\n",
    "a zero in a header": "X-Zero: a\0b\r\n\r\n",
    "a bare carriage return": "X-Bare: a\rContent-Length: 5\r\n\r\nabcde",
}


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS.keys())
@pytest.mark.parametrize("line", [f"PUT {NODE}?{VERSION}", "POST /ui/sign-in/key", "GET /healthz"])
def test_request_smuggled_by_ambiguous_framing_is_not_answered(door: Door, line: str, framing: str) -> None:
    """A proxy that finds another end of the request would forward a request in another user's name."""
    answers = door.send(f"{line} HTTP/1.1\r\nHost: x\r\n{framing}".encode(), SMUGGLED)

    door.judge(answers)
    assert b'"swagger"' not in answers.content, "the hidden request was answered"


LINES = {
    "no version": b"GET /healthz\r\n\r\n",
    "a version of the future": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that nobody knows": b"BREW /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a tunnel": b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\nConnection: close\r\n\r\n",
    "another's address": b"GET http://elsewhere.example/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n",
    "a host that is none": b"GET /ui/sign-in HTTP/1.1\r\nHost: [::\r\nConnection: close\r\n\r\n",
    "bytes that are no text": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "escapes that are no text": b"GET /ui/%ff%fe%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "ways out": b"GET /ui/assets/../../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "escaped ways out": b"GET /ui/assets/%2e%2e%2f%2e%2e/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a socket for the web": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
    "a long path": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a thousand headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"Connection: close\r\n\r\n",
}


@pytest.mark.parametrize("sent", LINES.values(), ids=LINES.keys())
def test_malformed_request_causes_no_server_error(door: Door, sent: bytes) -> None:
    answers = door.send(sent, request("GET /healthz"))

    door.judge(answers)
    assert b"root:" not in answers.content


BODIES = {
    "deep": b"[" * 200_000,
    "deep and closed": b'{"a":' * 900 + b"1" + b"}" * 900,
    "a number without end": b'{"properties": {"nodeConfig": {"maxPods": ' + b"9" * 5000 + b"}}}",
    "half a character": b'{"properties": {"nodeConfig": {"labels": {"a": "\\ud800"}}}}',
    "zeros": b"\0" * 1000,
    "UTF-16": '{"properties": {}}'.encode("utf-16"),
    "the same key often": b'{"properties": {' + b'"nodeConfig": {}, ' * 5000 + b'"nodeConfig": {}}}',
    "a megabyte of keys": b'{"properties": {' + b",".join(b'"%d": 1' % n for n in range(60_000)) + b"}}",
    "more than is taken": b'{"properties": "' + b"x" * (3 << 20) + b'"}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_hostile_bodies_are_refused_with_400_or_413(door: Door, admin: str, body: bytes) -> None:
    for line in (f"PUT {NODES}/hostile?{VERSION}", f"POST {NODE}/reportStatus?{VERSION}"):
        answers = door.send(request(line, admin, "Content-Type: application/json", body=body))
        door.judge(answers)
        assert answers.statuses[:1] in ([400], [413])
        assert len(answers.content) < 100_000  # the response is smaller than the request


@pytest.mark.parametrize("who", ["somebody", "a stranger"])
def test_endless_body_is_refused_with_413_or_401(
    door: Door, admin: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "REST_SECONDS", 0.2)
    name = admin if who == "somebody" else "X-Nobody: at all"
    head = f"PUT {NODE}?{VERSION} HTTP/1.1\r\nHost: x\r\n{name}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()

    answers = door.send(head, *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 40)

    door.judge(answers)
    assert answers.statuses == [413 if who == "somebody" else 401]


@pytest.mark.parametrize("line", [f"PUT {NODE}?{VERSION}", f"POST {PAGE}/edit"])
def test_unfinished_body_times_out_with_408(
    door: Door, admin: str, session: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_messages, "BODY_SECONDS", 0.2)
    kind = FORM if line.startswith("POST") else "Content-Type: application/json"
    head = "\r\n".join((f"{line} HTTP/1.1", "Host: x", admin, session, kind, "Content-Length: 100", "", "{"))

    answers = door.send(head.encode())

    door.judge(answers)
    assert answers.statuses == [408]


def test_form_with_malformed_origin_is_refused_with_403(door: Door, session: str) -> None:
    answers = door.send(request(f"POST {PAGE}/delete", session, FORM, "Origin: http://[", body=b"name=edge-1"))

    door.judge(answers)
    assert answers.statuses == [403]


@given(damaged(request(f"GET {NODE}?{VERSION}", "Prefer: wait=0", "X-Any: thing")), st.booleans())
@settings(max_examples=60)
def test_damaged_request_causes_no_server_error(door: Door, sent: bytes, twice: bool) -> None:
    door.judge(door.send(sent + b"\r\n\r\n", *([request("GET /healthz")] if twice else [])))


@given(st.sampled_from(READS), st.dictionaries(st.sampled_from(PARAMETERS), odd, min_size=1, max_size=4))
def test_arbitrary_query_causes_no_server_error(
    door: Door, admin: str, session: str, path: str, query: dict[str, str]
) -> None:
    words = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    version = f"&{VERSION}" if path.startswith("/subscriptions") and "api-version" not in query else ""

    door.judge(door.send(request(f"GET {path}?{words}{version}", admin, session)))


@given(st.sampled_from(READS), st.dictionaries(st.sampled_from(HEADERS), odd, min_size=1, max_size=4))
def test_arbitrary_header_causes_no_server_error(
    door: Door, admin: str, session: str, path: str, headers: dict[str, str]
) -> None:
    own = [each for each in (admin, session) if each.partition(":")[0] not in headers]
    lines = [f"{name}: {value}" for name, value in headers.items()]

    door.judge(door.send(request(f"GET {path}?{VERSION}", *own, *lines), b"0\r\n\r\n"))


@given(
    st.sampled_from(("/ui/sign-in/key", "/ui/create", f"{PAGE}/edit", f"{PAGE}/delete", f"{PAGE}/token")),
    st.dictionaries(st.sampled_from(FIELDS), odd, max_size=5) | st.binary(max_size=50),
)
def test_arbitrary_form_causes_no_server_error(
    door: Door, session: str, path: str, form: dict[str, str] | bytes
) -> None:
    content = form if isinstance(form, bytes) else "&".join(f"{k}={quote(v)}" for k, v in form.items()).encode()

    door.judge(door.send(request(f"POST {path}", session, FORM, body=content)))


@given(json_values() | st.dictionaries(st.sampled_from(("properties", "name", "id")), json_values()))
def test_arbitrary_json_body_causes_no_server_error(door: Door, admin: str, body: object) -> None:
    content = json.dumps(body).encode() or b" "
    for line in (f"PUT {NODES}/any?{VERSION}", f"POST {NODE}/reportStatus?{VERSION}"):
        door.judge(door.send(request(line, admin, body=content)))
