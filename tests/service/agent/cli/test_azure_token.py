"""Tests of the agent's credentials for the API server: from the kubelet's file or the kubelet's script."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 - pytest looks at it

import pytest

from aks_flex_node.agent.cluster.client import azure_token
from aks_flex_node.agent.identity.token_cache import TOKEN_CACHE_FILE, CachedToken, write_cache
from aks_flex_node.errors import ClusterError

GIVES = """echo '{"status": {"token": "from-the-script"}}'"""
FAILS = "echo 'azure-sign-in-failed: The secret is wrong.' >&2; exit 1"


def folder(place: Path, script: str, lasts: float | None) -> str:
    file = place / "token.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o700)
    if lasts is not None:
        write_cache(place / TOKEN_CACHE_FILE, CachedToken("from-the-file", time.time() - 60, time.time() + lasts))
    return str(place)


@pytest.mark.parametrize(
    ("script", "lasts", "token"),
    [
        (FAILS, 3600, "from-the-file"),
        (FAILS, 120, "from-the-file"),
        (GIVES, 20, "from-the-script"),
        (GIVES, None, "from-the-script"),
        (FAILS, 20, "from-the-file"),  # Entra ID is unavailable, and the old token is still valid for a moment
    ],
)
def test_cached_azure_token_is_used_until_shortly_before_expiry(
    tmp_path: Path, script: str, lasts: float | None, token: str
) -> None:
    assert azure_token(folder(tmp_path, script, lasts)) == token


@pytest.mark.parametrize("lasts", [None, -1.0])
def test_missing_azure_token_error_contains_cause(tmp_path: Path, lasts: float | None) -> None:
    with pytest.raises(ClusterError, match="The secret is wrong") as caught:
        azure_token(folder(tmp_path, FAILS, lasts))
    assert (caught.value.name, caught.value.retryable) == ("azure-token-unavailable", True)
