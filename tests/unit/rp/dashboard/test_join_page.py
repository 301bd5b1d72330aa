"""Tests of the steps of a join on its page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.dashboard.join_page import (
    CONFIG_URL_COOKIE,
    NEW_COMMAND_HINT,
    ORDER,
    RERUN_HINT,
    ConfigUrlCookie,
    JoinStep,
    join_remedy,
    join_steps,
)
from aks_flex_rp.dashboard.page_request import PageRequest
from aks_flex_rp.dashboard.sessions import SignedInUser
from aks_flex_rp.join_state import NEW_URL_REMEDY, JoinState
from aks_flex_rp.nodes.commands import ConfigUrl
from aks_flex_rp.store.model import AuditAction, AuditEvent, Node


def node(**join: Any) -> Node:
    return Node("c", "n", "n", 1, '"1"', {}, {}, join=JoinState.from_document({"since": 10.0, **join}), created=1.0)


def progress(join: dict[str, Any], state: str, ready: str = "Unknown", *events: AuditEvent, **more: Any) -> list[str]:
    told = {"joinState": state, "conditions": [{"type": "Ready", "status": ready}], **more}
    return [each.progress for each in join_steps(node(**join), told, events)]


@pytest.mark.parametrize("state", ORDER[:4])
def test_current_join_step_is_marked(state: str) -> None:
    place = ORDER.index(state)
    assert progress({}, state) == [*["done"] * place, "now", *["next"] * (4 - place)]


def test_ready_node_has_all_join_steps_done() -> None:
    assert progress({}, "Joined", "True") == ["done"] * 5


@pytest.mark.parametrize(
    ("join", "more", "failing"),
    [
        ({"state": "Created"}, {}, "ConfigFetched"),
        ({"state": "ConfigFetched"}, {}, "BootstrapAttempted"),
        ({"state": "Failed"}, {"agentVersion": "1.0.0"}, "BootstrapAttempted"),
        ({"state": "Failed", "failure": "preflight", "urlExpires": 99.0}, {}, "BootstrapAttempted"),
        ({"state": "Failed", "csr": "x"}, {}, "Joined"),
    ],
)
def test_failed_join_step_is_the_one_after_last_completed_step(
    join: dict[str, Any], more: dict[str, Any], failing: str
) -> None:
    found = progress(join, "Failed", **more)
    assert ORDER[found.index("failed")] == failing
    assert "now" not in found


def test_failed_join_step_considers_config_url_fetches_in_audit() -> None:
    earlier, later = (AuditEvent(at, "u", AuditAction.CONFIG_URL_FETCHED, "/n") for at in (5.0, 15.0))
    assert progress({"state": "Failed"}, "Failed", "Unknown", earlier).index("failed") == 1
    assert progress({"state": "Failed"}, "Failed", "Unknown", later).index("failed") == 2


def test_failure_cause_is_shown_at_failed_join_step() -> None:
    told = {"joinState": "Failed", "joinFailure": "no route", "conditions": []}
    [failed] = [each for each in join_steps(node(), told) if each.progress == "failed"]
    assert failed.note == "no route"


URL = ConfigUrl("https://rp.example/configs/hc0secret#ca=sha256:4f1c", 2000.0)
NODE = "/clusters/Plant/flexNodeConfig/press-1"
SESSION, OTHER_SESSION = "the secret of a session", "that of another"


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def visit(session: str = SESSION, cookie: str = "") -> PageRequest:
    headers = [(b"cookie", f"{CONFIG_URL_COOKIE}={cookie}".encode())] if cookie else []
    return PageRequest(Request({"type": "http", "headers": headers}), "request", SignedInUser(ADMIN_CALLER, session))


def url_cookie(clock: Clock | None = None) -> ConfigUrlCookie:
    return ConfigUrlCookie(Sealer([b"k" * 32], "a test"), clock or Clock())


def cookie_value(made: ConfigUrlCookie) -> str:
    """Returns the value of the cookie."""
    answer = Response()
    made.give(answer, visit(), NODE, URL)
    header = answer.headers["set-cookie"]
    assert all(word in header for word in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"))
    return header.partition("=")[2].partition(";")[0]


def test_join_url_is_returned_to_same_node_and_session() -> None:
    made = url_cookie()
    assert made.take(visit(cookie=cookie_value(made)), NODE.upper()) == URL


def test_join_cookie_does_not_contain_url_in_plaintext() -> None:
    assert "hc0secret" not in cookie_value(url_cookie())


def test_join_url_is_not_returned_for_other_session_node_or_cookie() -> None:
    made = url_cookie()
    cookie = cookie_value(made)
    assert made.take(visit(OTHER_SESSION, cookie), NODE) is None
    assert made.take(visit(cookie=cookie), f"{NODE}0") is None
    for other in ("", "x", "%%%", cookie[:-8], cookie[:-4] + "AAAA"):
        assert made.take(visit(cookie=other), NODE) is None


def test_join_cookie_expires_after_a_minute() -> None:
    clock = Clock()
    made = url_cookie(clock)
    cookie = cookie_value(made)
    clock.now += 61
    assert made.take(visit(cookie=cookie), NODE) is None


def test_join_remedy_depends_on_failed_step() -> None:
    def stopped(at: str) -> str:
        return join_remedy([JoinStep("Created", "Created", "done"), JoinStep(at, at, "failed")])

    assert stopped("ConfigFetched") == NEW_COMMAND_HINT
    assert stopped("Joined") == RERUN_HINT
    expired = JoinStep("Joined", "Joined", "failed", f"The bootstrap token expired. {NEW_URL_REMEDY}")
    assert join_remedy([expired]) == NEW_COMMAND_HINT
    assert join_remedy([JoinStep("Created", "Created", "now")]) == ""
