"""Tests of the message for a backup of a service on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.backup import refuse_postgres
from aks_flex_rp.settings import ServiceSettings


def test_postgres_backup_error_shows_pg_dump_command_without_password() -> None:
    settings = ServiceSettings(database="postgresql://flex:canary%21@db.example:5432/flex?sslmode=require")

    with pytest.raises(ConfigError) as refused:
        refuse_postgres(settings, Path("backup.dump"))
    words = "--file=backup.dump 'postgresql://flex@db.example:5432/flex?sslmode=require'"
    assert words in refused.value.message
    assert "canary" not in str(refused.value)
