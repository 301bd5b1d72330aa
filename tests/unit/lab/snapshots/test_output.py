"""Tests of the displayed text of a difference."""

from __future__ import annotations

from aks_flex_lab.snapshots import AttributeChange, SnapshotDifference, render


def added(section: str, key: str, **attributes: str) -> SnapshotDifference:
    return SnapshotDifference(
        section, key, "added", tuple(AttributeChange(name, None, text) for name, text in attributes.items())
    )


def removed(section: str, key: str, **attributes: str) -> SnapshotDifference:
    return SnapshotDifference(
        section, key, "removed", tuple(AttributeChange(name, text, None) for name, text in attributes.items())
    )


def changed(section: str, key: str, name: str, before: str | None, after: str | None) -> SnapshotDifference:
    return SnapshotDifference(section, key, "changed", (AttributeChange(name, before, after),))


def test_no_differences_render_no_lines() -> None:
    assert render([]) == []


def test_rendered_lines_are_aligned_in_columns() -> None:
    lines = render(
        [
            changed("file", "/usr/local/bin/foo", "mode", "0755", "0754"),
            added("unit", "foo.service", enabled="enabled", active="inactive (dead)"),
            added("mount", "/mnt/x", type="tmpfs", source="tmpfs", options="rw"),
        ]
    )

    assert lines == [
        "file   /usr/local/bin/foo  changed  mode 0755 -> 0754",
        "unit   foo.service         added    enabled, inactive (dead)",
        "mount  /mnt/x              added    tmpfs, tmpfs",
    ]


def test_added_tree_renders_as_one_line_with_count() -> None:
    tree = [added("file", path, type="directory", mode="0755") for path in ("/opt/cni", "/opt/cni/bin", "/opt/cni/x")]

    assert render(tree) == ["file  /opt/cni  added    directory, 0755, with 2 below"]


def test_removed_tree_renders_as_one_line_without_its_sibling() -> None:
    went = [removed("file", path, type="file") for path in ("/a", "/a-b", "/a/b", "/a/b/c")]

    assert render(went) == ["file  /a    removed  file, with 2 below", "file  /a-b  removed  file"]


def test_changed_file_in_added_directory_has_its_own_line() -> None:
    lines = render([added("file", "/a", type="directory"), changed("file", "/a/b", "mode", "0600", "0644")])

    assert len(lines) == 2


def test_files_below_added_mount_render_as_one_line() -> None:
    lines = render(
        [
            added("file", "/srv/a", type="file"),
            added("file", "/srv/b", type="file"),
            added("mount", "/srv", type="ext4", source="/dev/vda"),
        ]
    )

    assert lines == ["file   /srv/*  added    2 of them", "mount  /srv    added    ext4, /dev/vda"]


def test_sysctls_of_added_network_link_render_as_one_line() -> None:
    lines = render([added("sysctl", f"net.ipv4.conf.cni0.{name}", value="0") for name in ("forwarding", "rp_filter")])

    assert lines == ["sysctl  net.ipv4.conf.cni0.*  added    2 of them"]


def test_changed_sysctl_of_network_link_has_its_own_line() -> None:
    lines = render([changed("sysctl", "net.ipv4.conf.all.rp_filter", "value", "0", "2")])

    assert lines == ["sysctl  net.ipv4.conf.all.rp_filter  changed  value 0 -> 2"]


def test_hashes_are_shortened_and_missing_values_shown_as_none() -> None:
    lines = render(
        [
            changed("file", "/a", "sha256", "0" * 64, "f" * 64),
            changed("file", "/b", "xattr security.capability", None, "01"),
        ]
    )

    assert lines == [
        "file  /a  changed  sha256 000000000000 -> ffffffffffff",
        "file  /b  changed  xattr security.capability none -> 01",
    ]


def test_count_is_rendered_only_when_greater_than_one() -> None:
    lines = render([added("process", "- sleep 1", count="1"), added("process", "- sleep 2", count="3")])

    assert lines == ["process  - sleep 1  added", "process  - sleep 2  added    3 times"]


def test_control_characters_in_file_names_are_escaped() -> None:
    (line,) = render([added("file", "/etc/a\udcffb\n\x1b[31m", type="file")])

    assert line == r"file  /etc/a\xffb\n\x1b[31m  added    file"


def test_long_key_does_not_widen_column_of_other_lines() -> None:
    lines = render([added("process", "x" * 200, count="2"), added("process", "y", count="2")])

    assert lines[0].endswith("x  added    2 times")
    assert lines[1] == f"process  {'y':<60}  added    2 times"
