"""Tests of config URLs: where they come from, the format of bundles, and what is stored."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.loader import load_fetch_settings
from aks_flex_node.agent.config.remote import ConfigBundle, parse_bundle, select_config_url
from aks_flex_node.agent.config.sources import CONFIG_VARIABLE, URL_VARIABLE, from_environment
from aks_flex_node.agent.paths import CONFIG_URL_DIGEST, CONFIG_VERSION_FILE, CURRENT_CONFIG, STATE_DIR
from aks_flex_node.api.config_urls import parse
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_node.host.actions import MakeDirectory
from tests.unit.agent.builders import empty_host
from tests.unit.agent.config.builders import TOKEN, load_plain

if TYPE_CHECKING:
    from tests.hosts.recorded import RecordedHost


FIRST, SECOND = parse("https://rp.example/configs/canary-1#ca=sha256:" + "ab" * 32), parse("https://rp.example/c/2")


@pytest.fixture
def host() -> RecordedHost:
    found = empty_host()
    found.apply(MakeDirectory(STATE_DIR, 0o700))
    return found


def bundle(version: object = "1708123456", **more: object) -> ConfigBundle:
    config = {"node": {"name": "edge-1"}, "azure": {"bootstrapToken": {"token": TOKEN}}}
    data = {"config": config, **more, **({"configVersion": version} if version is not None else {})}
    return parse_bundle(json.dumps(data).encode(), "https://rp.example")


def test_loader_reads_a_bundle_and_ignores_unknown_fields() -> None:
    found = bundle(somethingNew={"a": 1})
    assert load_plain(found.text, "https://rp.example").config.node.name == "edge-1"
    assert found.version == "1708123456"


@pytest.mark.parametrize(
    ("given", "version"), [(None, ""), (1708123456, "1708123456"), ("", ""), ('W/"0a1b"', 'W/"0a1b"')]
)
def test_config_version_may_be_missing_a_number_or_an_etag(given: object, version: str) -> None:
    assert bundle(given).version == version


@pytest.mark.parametrize("given", ["../../etc", "1\n2", "\u0661", ["1"]])
def test_invalid_config_version_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="configVersion"):
        bundle(given)


def test_config_bundle_repr_shows_no_secrets() -> None:
    assert TOKEN not in repr(bundle())


def test_fetched_config_is_stored_with_mode_0600(host: RecordedHost) -> None:
    config_store.save_fetched(host, bundle(), FIRST)
    modes = {
        path: entry.mode
        for path in (CURRENT_CONFIG, CONFIG_VERSION_FILE, CONFIG_URL_DIGEST)
        if (entry := host.stat(path))
    }
    assert modes == {CURRENT_CONFIG: 0o600, CONFIG_VERSION_FILE: 0o600, CONFIG_URL_DIGEST: 0o600}
    assert host.read(CONFIG_VERSION_FILE) == b"1708123456\n"
    assert TOKEN.encode() in (host.read(CURRENT_CONFIG) or b"")


def test_config_url_is_recognized_by_its_stored_digest(host: RecordedHost) -> None:
    assert not config_store.is_fetched_from(host, FIRST)
    config_store.save_fetched(host, bundle(), FIRST)
    assert config_store.is_fetched_from(host, FIRST)
    assert not config_store.is_fetched_from(host, SECOND)
    assert not any(b"canary" in (host.read(f"{STATE_DIR}/{name}") or b"") for name in host.list_dir(STATE_DIR))


def test_bundle_without_version_removes_the_stored_version(host: RecordedHost) -> None:
    config_store.save_fetched(host, bundle(), FIRST)
    config_store.save_fetched(host, bundle(None), SECOND)
    assert host.stat(CONFIG_VERSION_FILE) is None


def test_fetch_settings_are_loaded_from_environment_and_flags() -> None:
    env = {"AKS_FLEX_NODE_PROXY__HTTPS": "http://proxy.example:3128"}
    found = load_fetch_settings(env, {"artifacts.attempts": "2", "azure.arc.targetCluster.name": "half of a setting"})
    assert (found.proxy.https, found.artifacts.attempts) == ("http://proxy.example:3128", 2)


def test_misspelled_flag_is_reported_before_fetching() -> None:
    with pytest.raises(ConfigError, match="prxy"):
        load_fetch_settings({}, {"prxy.https": "x"})


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
