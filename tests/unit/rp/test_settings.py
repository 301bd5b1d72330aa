"""The service's configuration: flags over the environment over the file, and defaults that work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp import settings
from aks_flex_rp.settings import ServiceSettings, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "config.yaml"
    made.write_text("listen: 127.0.0.1:1\nstateDir: /from/file\npublicUrl: https://file.example\n")
    return made


def test_flags_are_stronger_than_the_environment_and_that_than_the_file(file: Path) -> None:
    env = {"AKS_FLEX_RP_LISTEN": "127.0.0.1:2", "AKS_FLEX_RP_URL": "https://env.example"}

    found = load(file, env, listen="127.0.0.1:3")

    assert (found.listen, found.public_url, str(found.state_dir)) == (
        "127.0.0.1:3",
        "https://env.example",
        "/from/file",
    )


def test_the_environment_may_name_the_file(file: Path) -> None:
    assert load(None, {"AKS_FLEX_RP_CONFIG": str(file)}).origin == "https://file.example"


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.yaml", {})
    assert caught.value.name == "service-config-missing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: nowhere", "listen: "),
        ("listen: 0.0.0.0:99999", "listen: "),
        ("publicUrl: http://flex.example", "publicUrl: "),
        ("publicUrl: https://flex.example/path", "publicUrl: "),
        ("tls: {certificateFile: /a}", "tls: "),
        ("delivery: {method: azureBlob}", "delivery: "),
        ("tokens: {hours: 0}", "tokens.hours: "),
        ("log: {level: loud}", "log.level: "),
        ("auth: {roles: [{role: king, scope: /, principal: x}]}", "auth.roles.0.role: "),
        ("surprise: 1", "surprise: "),
        ("[1]", "is not a YAML mapping"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.name == "service-config-invalid"
    assert said in str(caught.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("listen: nowhere\npublicUrl: http://x\nlog: {format: xml}\n")

    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert all(place in str(caught.value) for place in ("listen", "publicUrl", "log.format"))


def test_a_password_in_the_address_of_the_database_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("database: postgresql://me:canary@db/x\nlisten: nowhere\n")

    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert "canary" not in str(caught.value)


def test_the_own_certificate_is_for_every_name_that_is_used() -> None:
    made = ServiceSettings.model_validate(
        {"listen": "[::1]:8443", "publicUrl": "https://flex.example:8443", "tls": {"names": ["other.example"]}}
    )

    assert {"flex.example", "other.example", "localhost", "127.0.0.1", "::1"} <= set(made.names)
    assert (made.host, made.port) == ("::1", 8443)
    assert "0.0.0.0" not in ServiceSettings().names  # noqa: S104 - looked for, not bound


def test_without_a_word_the_state_is_in_one_place(tmp_path: Path) -> None:
    made = ServiceSettings(state_dir=tmp_path)

    assert {made.admin_key_file.parent, made.sqlite_file.parent, made.keys.parent} == {tmp_path}
    assert made.port == settings.DEFAULT_PORT
