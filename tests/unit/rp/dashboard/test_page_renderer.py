"""Text of pages: code, and names of the catalogue as links to their help page."""

from __future__ import annotations

import pytest

from aks_flex_rp.dashboard.page_renderer import marked


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Run `journalctl -u kubelet`.", "Run <code>journalctl -u kubelet</code>."),
        ("See `disk-full`.", 'See <a href="/ui/help/disk-full"><code>disk-full</code></a>.'),
        (
            "Run `aks-flex-node explain disk-full`.",
            'Run <a href="/ui/help/disk-full"><code>aks-flex-node explain disk-full</code></a>.',
        ),
        ("`<b>` and `no-such-name`", "<code>&lt;b&gt;</code> and <code>no-such-name</code>"),
    ],
)
def test_catalogue_names_in_text_are_links_to_their_help_page(text: str, html: str) -> None:
    assert marked(text) == html
