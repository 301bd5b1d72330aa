"""Tests of the service's configuration: flags over environment over file, and working defaults."""

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


def test_flags_override_environment_and_environment_overrides_file(file: Path) -> None:
    env = {"AKS_FLEX_RP_LISTEN": "127.0.0.1:2", "AKS_FLEX_RP_URL": "https://env.example"}

    found = load(file, env, listen="127.0.0.1:3")

    assert (found.listen, found.public_url, str(found.state_dir)) == (
        "127.0.0.1:3",
        "https://env.example",
        "/from/file",
    )


def test_config_file_can_be_set_by_environment(file: Path) -> None:
    assert load(None, {"AKS_FLEX_RP_CONFIG": str(file)}).origin == "https://file.example"


def test_missing_config_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.yaml", {})
    assert caught.value.name == "service-config-missing"


def refusal(room: Path, text: str) -> str:
    """Returns the message for a configuration file with this text."""
    file = room / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.name == "service-config-invalid"
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: nowhere", "listen: "),
        ("listen: 0.0.0.0:99999", "listen: "),
        ("publicUrl: http://flex.example", "publicUrl: "),
        ("publicUrl: https://flex.example/path", "publicUrl: "),
        ("tls: {certificateFile: /a}", "tls: "),
        ("delivery: {method: azureBlob}", "delivery: "),
        ("delivery: {method: azureBlob, azureBlob: {}}", "delivery: "),
        ("tokens: {hours: 0}", "tokens.hours: "),
        ("log: {level: loud}", "log.level: "),
        ("auth: {roles: [{role: king, scope: /, principal: x}]}", "auth.roles.0.role: "),
        ("surprise: 1", "surprise: "),
        ("[1]", "is not a YAML mapping"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_invalid_setting_is_reported_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_all_invalid_settings_are_reported_together(tmp_path: Path) -> None:
    said = refusal(tmp_path, "listen: nowhere\npublicUrl: http://x\nlog: {format: xml}\n")

    assert all(place in said for place in ("listen", "publicUrl", "log.format"))


def test_database_password_is_not_shown_in_config_error(tmp_path: Path) -> None:
    assert "canary" not in refusal(tmp_path, "database: postgresql://me:canary@db/x\nlisten: nowhere\n")


def test_own_certificate_covers_all_names_of_service() -> None:
    made = ServiceSettings.model_validate(
        {"listen": "[::1]:8443", "publicUrl": "https://flex.example:8443", "tls": {"names": ["other.example"]}}
    )

    assert {"flex.example", "other.example", "localhost", "127.0.0.1", "::1"} <= set(made.names)
    assert (made.host, made.port) == ("::1", 8443)
    assert "0.0.0.0" not in ServiceSettings().names  # noqa: S104 - looked for, not bound


def test_state_files_are_in_state_directory_by_default(tmp_path: Path) -> None:
    made = ServiceSettings(state_dir=tmp_path)

    assert {made.admin_key_file.parent, made.sqlite_file.parent, made.keys.parent} == {tmp_path}
    assert made.port == settings.DEFAULT_PORT
