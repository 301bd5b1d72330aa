"""Tests of provider tokens: the cache, the token process, and its invalid output."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.provider.provider_tokens import EXPIRY_MARGIN, ProviderTokens, SignInError
from tests.remedies.catalogue import advice
from tests.service.agent.daemon.harness import script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUNDLE = '{"config": {"secret": "canary-secret"}}'
COUNT = 'cat >/dev/null; echo >>"$0.calls"; count=$(wc -l <"$0.calls")'
NUMBERED = COUNT + """; echo '{"token": "token-'$count'", "seconds": 3600}'"""


def refuses(name: str = "sign-in-refused") -> str:
    said = {"error": {"name": name, "message": "No.", "hint": "Try.", "retryable": True}}
    return f"cat >/dev/null; echo '{json.dumps(said)}'"


def tokens_of(
    room: Path, text: str, now: Callable[[], float] = lambda: 0.0, spare: Callable[[], str] = lambda: ""
) -> ProviderTokens:
    return ProviderTokens(script(room, text), lambda: BUNDLE, spare, now)


def failure(tokens: ProviderTokens) -> SignInError:
    with pytest.raises(SignInError) as caught:
        tokens.value()
    return caught.value


@pytest.mark.parametrize(("life", "used"), [(3600, 3600 - EXPIRY_MARGIN), (60, 30.0)])
def test_token_is_reused_until_its_margin_or_half_its_lifetime(tmp_path: Path, life: int, used: float) -> None:
    moment = [0.0]
    tokens = tokens_of(tmp_path, NUMBERED.replace("3600", str(life)), lambda: moment[0])
    assert {tokens.value(), tokens.value()} == {"token-1"}
    moment[0] = used - 1
    assert tokens.value() == "token-1"
    moment[0] = used
    assert tokens.value() == "token-2"


def test_invalidated_token_is_fetched_again(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, NUMBERED)
    tokens.value()
    tokens.invalidate()
    assert tokens.value() == "token-2"


def test_token_is_kept_for_the_same_identity_only(tmp_path: Path) -> None:
    azure: dict[str, object] = {"tenantId": "a", "bootstrapToken": {"token": "one"}}
    tokens = tokens_of(tmp_path, NUMBERED)
    tokens.read_bundle = lambda: json.dumps({"config": {"azure": azure}})
    assert tokens.value() == "token-1"
    azure["bootstrapToken"] = {"token": "another"}
    assert tokens.value() == "token-1"
    azure["tenantId"] = "b"
    assert {tokens.value(), tokens.value()} == {"token-2"}
    tokens.read_bundle = lambda: "damaged"
    assert tokens.value() == "token-2"


def test_concurrent_requests_start_one_token_process(tmp_path: Path) -> None:
    tokens, got = tokens_of(tmp_path, NUMBERED), []
    threads = [threading.Thread(target=lambda: got.append(tokens.value())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["token-1"] * 8


def test_token_process_receives_config_only_on_stdin(tmp_path: Path) -> None:
    told = tmp_path / "told"
    text = f"""{{ echo "$@"; env; echo ---; cat; }} >{told}; echo '{{"token": "x", "seconds": 60}}' """
    tokens_of(tmp_path, text).value()
    words, _, piped = told.read_text().partition("---\n")
    assert words.splitlines()[0] == "azure-token"
    assert "canary" not in words
    assert piped == BUNDLE


def test_sign_in_refusal_is_reported_unchanged(tmp_path: Path) -> None:
    error = failure(tokens_of(tmp_path, refuses())).error
    assert (error.name, error.message, error.hint, error.retryable) == ("sign-in-refused", "No.", "Try.", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 1", "the sign-in process printed no error"),
        ("echo 'Killed: no memory' >&2; exit 137", "Killed: no memory"),
        ("echo null", "the sign-in process printed no error"),
        ("echo 5", "the sign-in process printed no error"),
        ("echo '[]'", "the sign-in process printed no error"),
        ("echo '{}'", "the sign-in process printed no error"),
        ("""echo '{"token": "canary"}'""", "the sign-in process printed no error"),
        ("""echo '{"token": "canary", "seconds": "soon"}'""", "the sign-in process printed no error"),
        ("""echo '{"token": "canary", "seconds": null}'""", "the sign-in process printed no error"),
        ("""echo '{"error": {"later": 1}}'""", "the sign-in process printed no error"),
        ("""echo '{"error": "odd"}'""", "the sign-in process printed no error"),
    ],
)
def test_invalid_token_process_output_is_retryable_sign_in_failure(tmp_path: Path, text: str, said: str) -> None:
    error = failure(tokens_of(tmp_path, f"cat >/dev/null; {text}"))
    assert (error.error.name, error.error.retryable) == ("sign-in-failed", True)
    assert said in error.error.message
    assert "canary" not in f"{error!r} {error}"


@pytest.mark.remedy("sign-in-failed")
def test_missing_token_program_is_sign_in_failure(tmp_path: Path) -> None:
    tokens = ProviderTokens(str(tmp_path / "program"), lambda: BUNDLE)
    error = failure(tokens).error
    assert error.name == "sign-in-failed"
    assert f"{tmp_path}/program" in error.message

    advice("sign-in-failed", "Correct the cause in the message. The daemon retries automatically.")
    script(tmp_path, NUMBERED)
    assert tokens.value() == "token-1"


def test_unreadable_config_is_sign_in_failure(tmp_path: Path) -> None:
    error = failure(ProviderTokens(script(tmp_path, NUMBERED), (tmp_path / "none").read_text))
    assert error.error.name == "sign-in-failed"


def test_token_failure_is_not_cached(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, refuses())
    failure(tokens)
    script(tmp_path, NUMBERED)
    assert tokens.value() == "token-1"


ONLY_THE_NEW = (
    f"""case "$(cat)" in *new*) echo '{{"token": "by the new", "seconds": 60}}' ;; *) {refuses()} ;; esac"""
)


def test_pending_secret_is_used_when_current_one_fails(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, ONLY_THE_NEW, spare=lambda: '{"new": 1}').value() == "by the new"


@pytest.mark.parametrize("waiting", ["", '{"other": 1}'])
def test_first_error_is_reported_when_both_secrets_fail(tmp_path: Path, waiting: str) -> None:
    assert failure(tokens_of(tmp_path, ONLY_THE_NEW, spare=lambda: waiting)).error.name == "sign-in-refused"


def test_credential_check_does_not_change_cached_token(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, ONLY_THE_NEW)
    tokens.check_credentials('{"new": 1}')
    with pytest.raises(SignInError):
        tokens.check_credentials("{}")
    with pytest.raises(SignInError):
        tokens.value()


def test_token_cache_repr_shows_no_token(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, NUMBERED.replace("token-", "canary-"))
    tokens.value()
    assert "canary" not in repr(tokens)
