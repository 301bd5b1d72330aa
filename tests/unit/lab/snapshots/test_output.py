"""Tests of the displayed text of a difference."""

from __future__ import annotations

from aks_flex_lab.snapshots import AttributeChange, SnapshotDifference, render


def added(section: str, key: str, **attributes: str) -> SnapshotDifference:
    return SnapshotDifference(
        section, key, "added", tuple(AttributeChange(name, None, text) for name, text in attributes.items())
    )


def changed(section: str, key: str, name: str, before: str | None, after: str | None) -> SnapshotDifference:
    return SnapshotDifference(section, key, "changed", (AttributeChange(name, before, after),))


def test_rendered_lines_are_aligned_in_columns() -> None:
    lines = render(
        [
            changed("file", "/usr/local/bin/foo", "mode", "0755", "0754"),
            changed("file", "/x", "sha256", "a" * 64, None),
            added("unit", "foo.service", enabled="enabled", active="inactive (dead)"),
            added("process", "y" * 200, count="2"),
        ]
    )

    assert lines[:3] == [
        f"file     {'/usr/local/bin/foo':<60}  changed  mode 0755 -> 0754",
        f"file     {'/x':<60}  changed  sha256 aaaaaaaaaaaa -> none",
        f"unit     {'foo.service':<60}  added    enabled, inactive (dead)",
    ]
    assert lines[3].endswith("y  added    2")


def test_added_tree_is_one_line_without_siblings_and_changed_files() -> None:
    tree = [added("file", path, type="file") for path in ("/a", "/a-b", "/a/b", "/a/b/c")]

    assert render([*tree, changed("file", "/a/d", "mode", "0600", "0644")]) == [
        "file  /a    added    file, with 2 below",
        "file  /a-b  added    file",
        "file  /a/d  changed  mode 0600 -> 0644",
    ]


def test_sysctls_of_added_network_link_render_as_one_line() -> None:
    lines = render([added("sysctl", f"net.ipv4.conf.cni0.{name}", value="0") for name in ("forwarding", "rp_filter")])

    assert lines == ["sysctl  net.ipv4.conf.cni0.*  added    0, with 1 below"]


def test_bytes_that_are_not_text_are_escaped() -> None:
    assert render([added("file", "/a\udcff\n", type="")]) == ["file  /a\\xff\\n  added    empty"]
