"""Enables detailed assertion messages in the shared suite."""

import pytest

for _name in ("disks", "files", "machines", "units"):
    pytest.register_assert_rewrite(f"tests.hosts.{_name}")
