"""Tests of the sources of a config URL and of their precedence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from aks_flex_node.agent.config.remote import select_config_url
from aks_flex_node.agent.config.sources import CONFIG_VARIABLE, URL_VARIABLE, from_environment
from aks_flex_node.errors import CommandUsageError

URL = "https://rp.example/configs/canary"


def address(
    url: str | None = None,
    file: str | None = None,
    config: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: str = "",
) -> str | None:
    found = select_config_url(url, file, config, env or {}, io.StringIO(stdin))
    return found.address if found else None


def test_config_url_is_read_from_argument_file_stdin_or_environment(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}\n")
    assert address(URL) == URL
    assert address(file=str(file)) == URL
    assert address(file="-", stdin=f"{URL}\n") == URL
    assert address(env={URL_VARIABLE: URL}) == URL


def test_config_url_options_override_the_environment() -> None:
    assert address(config=Path("config.json"), env={URL_VARIABLE: URL}) is None
    assert address(URL, env={URL_VARIABLE: "https://other.example/configs/x", CONFIG_VARIABLE: "c"}) == URL


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"url": URL, "config": Path("c")}, ("--config", "--config-url")),
        ({"url": URL, "file": "-"}, ("--config-url", "--config-url-file")),
        ({"env": {URL_VARIABLE: URL, CONFIG_VARIABLE: "c"}}, (URL_VARIABLE, CONFIG_VARIABLE)),
    ],
)
def test_conflicting_config_sources_are_refused_by_name(given: dict[str, object], names: tuple[str, str]) -> None:
    with pytest.raises(CommandUsageError) as caught:
        address(**given)  # type: ignore[arg-type]
    assert caught.value.name == "config-source-conflict"
    assert all(name in caught.value.message for name in names)
    assert "canary" not in str(caught.value)


def test_unreadable_config_url_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "nothing", tmp_path, tmp_path / "bytes"):
        with pytest.raises(CommandUsageError) as caught:
            address(file=str(file))
        assert caught.value.name == "config-url-unreadable"


def test_config_url_variable_is_not_treated_as_a_setting() -> None:
    source = from_environment({URL_VARIABLE: URL})
    assert (source.settings, source.problems) == ({}, [])
