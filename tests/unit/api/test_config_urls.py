"""Tests of the format of a config URL, and of its redacted form."""

from __future__ import annotations

import pytest

from aks_flex_node.api import sealed_bundles
from aks_flex_node.api.config_urls import add_key, build, parse
from aks_flex_node.errors import CommandUsageError

PIN = "ab" * 32


def test_built_config_url_is_parsed_back() -> None:
    url = parse(build("https://rp.example:8443", "canary", PIN))
    assert (url.host, url.port, url.pin) == ("rp.example", 8443, PIN)
    assert url.address == "https://rp.example:8443/configs/canary"


def test_config_url_without_pin_has_default_port_and_empty_pin() -> None:
    url = parse("https://rp.example/prefix/configs/canary%3D")
    assert (url.port, url.pin) == (443, "")
    assert url.address.endswith("/canary%3D")


def test_config_url_text_never_contains_path_or_query() -> None:
    url = parse("https://[fd00::1]:8443/configs/canary?name=canary#ca=sha256:" + PIN)
    assert url.origin == "https://[fd00::1]:8443"
    assert "canary" not in f"{url} {url!r} {[url]}"


def test_key_of_a_sealed_bundle_is_neither_sent_nor_shown() -> None:
    key = sealed_bundles.new_key()
    url = parse(add_key("https://account.blob.core.windows.net/configs/a?sig=x", key))
    assert (url.key, url.pin) == (key, "")
    assert url.address == "https://account.blob.core.windows.net/configs/a?sig=x"
    assert key not in f"{url} {url!r} {[url]}"


def test_whitespace_around_config_url_is_ignored() -> None:
    assert parse(" https://rp.example/configs/x\n").address == "https://rp.example/configs/x"


def test_uppercase_pin_is_accepted() -> None:
    assert parse(f"https://rp.example/configs/x#ca=sha256:{PIN.upper()}").pin == PIN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://rp.example/configs/canary", "Use https://"),
        ("http://127.0.0.1/configs/canary", "Use https://"),
        ("https://account.blob.core.windows.net/c/a?se=2&sv=3&sig=canary", "storage account, and its part after #"),
        ("https://account.blob.core.windows.net/c/canary?se=2026", "storage account, and its part after #"),
        (f"https://own.example/c/canary?sv=2&sig=x#ca=sha256:{PIN}", "storage account, and its part after #"),
        ("ftp://rp.example/canary", "must begin with https://"),
        ("canary", "must begin with https://"),
        ("https:///configs/canary", "must begin with https://"),
        ("https://rp.example", "ends after the host name"),
        ("https://user:canary@rp.example/configs/x", "user name"),
        ("https://rp.example:canary/configs/x", "not a URL"),
        ("https://rp.example/configs/canary x", "not a URL"),
        ("https://rp.example/configs/canary\nx: y", "not a URL"),
        ("https://rp.example/configs/canary#ca=sha256:abc", "truncated or changed"),
        ("https://rp.example/configs/canary#canary", "truncated or changed"),
        ("https://rp.example/configs/canary#key=canary", "truncated or changed"),
        (f"https://rp.example/configs/canary#key={'k' * 44}", "truncated or changed"),
        ("https://rp.example/configs/" + "canary" * 1000, "not a URL"),
    ],
)
def test_invalid_config_url_is_refused_without_showing_it(text: str, reason: str) -> None:
    with pytest.raises(CommandUsageError, match=reason) as caught:
        parse(text)
    assert caught.value.name == "config-url-invalid"
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10:8080", "[::1]:8080"])
def test_http_config_url_to_loopback_is_accepted_when_plain_is_allowed(host: str) -> None:
    url = parse(f"http://{host}/configs/canary", plain=True)
    assert url.origin == f"http://{host}"


@pytest.mark.parametrize("host", ["rp.example", "localhost", "192.0.2.1", "127.0.0.1.example"])
def test_http_config_url_to_other_hosts_is_refused(host: str) -> None:
    with pytest.raises(CommandUsageError, match="Use https://"):
        parse(f"http://{host}/configs/canary", plain=True)
