"""Failures in the suite say as much as those in a test module."""

import pytest

for _name in ("disks", "files", "machines", "units"):
    pytest.register_assert_rewrite(f"tests.hosts.{_name}")
