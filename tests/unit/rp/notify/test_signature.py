from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.notify.webhook_client import read_secrets, signature_headers

if TYPE_CHECKING:
    from pathlib import Path


def secret_file(room: Path, content: str, mode: int = 0o600) -> Path:
    file = room / "secret"
    file.touch(mode)
    file.chmod(mode)
    file.write_text(content)
    return file


def encoded(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def test_signature_matches_standard_webhooks_example(tmp_path: Path) -> None:
    """The example is from the documentation of Standard Webhooks."""
    secrets = read_secrets(secret_file(tmp_path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"))
    made = signature_headers(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330)
    assert made == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_two_secrets_give_two_signatures_newest_first(tmp_path: Path) -> None:
    new, old = b"n" * 32, b"o" * 24
    secrets = read_secrets(secret_file(tmp_path, f"{encoded(new)}\n{encoded(old)}\n"))
    signatures = signature_headers(secrets, "id", b"{}", 7)["webhook-signature"].split(" ")
    expected = [hmac.digest(each, b"id.7.{}", "sha256") for each in (new, old)]
    assert [base64.b64decode(each.removeprefix("v1,")) for each in signatures] == expected


@pytest.mark.parametrize(
    "content",
    ["", "whsec_", "whsec_käse", encoded(b"short"), encoded(b"x" * 65), "\n".join([encoded(b"x" * 32)] * 3)],
    ids=["empty", "nothing", "not base64", "short", "long", "three"],
)
def test_malformed_webhook_secret_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_secrets(secret_file(tmp_path, content))
    assert raised.value.name == "webhook-secret-invalid"
    assert len(content) < 10 or content not in str(raised.value)


def test_webhook_secret_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="users other than its owner"):
        read_secrets(secret_file(tmp_path, encoded(b"x" * 32), 0o644))
