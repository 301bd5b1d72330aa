"""Tests of the pages of the dashboard: rate limits, audit, sessions."""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from aks_flex_rp.dashboard.page_request import SESSION_COOKIE, START_COOKIE
from tests.unit.rp.auth.token_issuer import TENANT

if TYPE_CHECKING:
    from pathlib import Path

    from urllib3 import BaseHTTPResponse

    from tests.service.rp.api.service_harness import Running, RunService

FEW = {"reads_per_second": 0.01, "read_burst": 3, "writes_per_second": 0.01, "write_burst": 3}
ID = "12345678-1234-1234-1234-123456789abc"


def ask(service: Running, path: str, cookie: str = "", **headers: str) -> BaseHTTPResponse:
    """Requests a page, unrecorded: pages are not part of the API's contract."""
    headers |= {"Cookie": cookie}
    return service.connection.pool.request("GET", service.connection.url + path, headers=headers, redirect=False)


def sign_in(service: Running) -> str:
    """Signs in; returns the session cookie."""
    begun = re.findall(rf"{START_COOKIE}=([^;]+)", ask(service, "/ui/sign-in").headers["Set-Cookie"])[0]
    key = service.service.settings.admin_key_file.read_text().strip()
    answer = service.connection.pool.request(
        "POST",
        f"{service.connection.url}/ui/sign-in/key",
        body=urlencode({"token": begun, "key": key, "next": "/"}),
        headers={"Cookie": f"{START_COOKIE}={begun}", "Content-Type": "application/x-www-form-urlencoded"},
        redirect=False,
    )
    return f"{SESSION_COOKIE}={re.findall(rf'{SESSION_COOKIE}=([^;]+)', answer.headers['Set-Cookie'])[0]}"


def test_fleet_page_requests_are_rate_limited_with_retry_after(
    run_service: RunService,
) -> None:
    with run_service(limits=FEW) as service:
        cookie = sign_in(service)
        answers = [ask(service, f"/?search={number}", cookie) for number in range(4)]
        assert [each.status for each in answers] == [200, 200, 200, 429]
        assert int(answers[-1].headers["Retry-After"]) >= 1


def test_entra_sign_in_is_rate_limited_by_address_and_failures_are_audited(
    run_service: RunService, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    entra = {"tenantId": TENANT, "clientId": ID, "clientSecretFile": str(secret)}
    with run_service(limits=FEW, dashboard={"entra": entra}) as service:
        done = [ask(service, "/ui/sign-in/entra/done?code=guess&state=guess") for _ in range(4)]
        assert [each.status for each in done] == [401, 401, 401, 429]
        assert ask(service, "/ui/sign-in/entra").status == 429
        events = service.call(service.store.audit(what="signIn"))
        assert [(each.who, each.outcome) for each in events] == [("somebody", "denied")], "the others are counted"


def test_automatic_page_refresh_does_not_extend_session(
    run_service: RunService,
) -> None:
    with run_service() as service:
        cookie = sign_in(service)
        store, now = service.store, time.time()
        name = hashlib.sha256(cookie.partition("=")[2].encode()).hexdigest()
        service.call(store.use_session(name, now - 1800))

        def used() -> float:
            found = service.call(store.session(name, now))
            return found.used if found else 0.0

        assert ask(service, "/", cookie, **{"X-Live": "old"}).status == 200
        assert used() == now - 1800
        assert ask(service, "/", cookie).status == 200
        assert used() >= now
