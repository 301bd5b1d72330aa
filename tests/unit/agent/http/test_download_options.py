"""Tests of the URL, proxy and displayed form of a download."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.artifacts.model import Artifact
from aks_flex_node.agent.http.client import check_redirect
from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl, redact_url, url_identity
from aks_flex_node.errors import ArtifactError

URL = "https://dl.k8s.io/v1/kubelet"


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        (None, URL),
        ("https://mirror.example", "https://mirror.example/dl.k8s.io/v1/kubelet"),
        ("https://mirror.example/files/", "https://mirror.example/files/dl.k8s.io/v1/kubelet"),
    ],
)
def test_mirror_replaces_the_publisher_in_the_download_url(base: str | None, asked: str) -> None:
    assert DownloadOptions(base_url=base).resolve(URL) == DownloadUrl(asked, URL)


@pytest.mark.parametrize(
    ("entry", "host", "direct"),
    [
        ("example.com", "example.com", True),
        ("example.com", "deep.sub.example.com", True),
        (".example.com", "sub.example.com", True),
        ("*.example.com", "sub.example.com", True),
        ("example.com", "notexample.com", False),
        ("example.com", "example.com.evil.org", False),
        ("EXAMPLE.com", "Example.COM", True),
        ("example.com:443", "example.com:443", True),
        ("example.com:8443", "example.com:443", False),
        ("10.0.0.0/8", "10.20.30.40", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "[fd00::1]", True),
        ("10.0.0.0/8", "ten.example.com", False),
        ("*", "anything.example", True),
        ("", "anything.example", False),
        ("not a network/99", "10.0.0.1", False),
    ],
)
def test_no_proxy_matches_names_domains_and_networks(entry: str, host: str, direct: bool) -> None:
    sources = DownloadOptions(https_proxy="http://proxy:3128", no_proxy=("unrelated.example", entry))
    assert sources.proxy_for(f"https://{host}/file") == (None if direct else "http://proxy:3128")


def test_each_url_scheme_uses_its_own_proxy() -> None:
    sources = DownloadOptions(http_proxy="plain:3128", https_proxy="https://tls:3129")
    assert sources.proxy_for("http://a/b") == "http://plain:3128"
    assert sources.proxy_for("https://a/b") == "https://tls:3129"
    assert DownloadOptions(http_proxy="plain:3128").proxy_for("https://a/b") is None


def test_redacted_url_contains_no_secrets() -> None:
    url = "https://joe:s3cret@blob.example:8443/kubelet?sig=s3cret#s3cret"
    assert redact_url(url) == "https://blob.example:8443/kubelet"
    assert "s3cret" not in str(DownloadUrl(url, url)) + url_identity(url)


def test_url_identity_distinguishes_urls_with_different_queries() -> None:
    assert url_identity(URL) == URL
    assert url_identity(f"{URL}?a") != url_identity(f"{URL}?b")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (URL, "kubelet"),
        ("https://h/a%20b+c.tar.gz?x=1", "a_b+c.tar.gz"),
        ("https://h/", "artifact"),
        ("https://h/..", "artifact"),
        ("https://h/%2e%2e%2fetc", "etc"),
        ("https://h/.partial", "partial"),
    ],
)
def test_artifact_name_is_safe_as_a_file_name(url: str, name: str) -> None:
    assert Artifact("a", "1", url, ()).name == name


def test_redirect_from_https_to_another_scheme_is_refused() -> None:
    place = DownloadUrl(URL, URL)
    assert check_redirect(URL, "https://other/file", place) == "https://other/file"
    for target in ("http://other/file", "ftp://other/file", "file:///etc/shadow"):
        with pytest.raises(ArtifactError) as caught:
            check_redirect(URL, target, place)
        assert caught.value.name == "redirect-refused"
