"""Tests of mount points from mountinfo."""

from __future__ import annotations

from aks_flex_node.host.mounts import mount_points

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:41 / /var/lib/a\\040lab/m rw shared:2 - overlay overlay rw
"""


def test_escaped_mount_points_are_decoded() -> None:
    assert mount_points(MOUNTINFO) == ["/", "/var/lib/a lab/m"]
