"""Builders of a certificate, a token and configuration texts."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, TypeAlias

import pytest

from aks_flex_node.agent.config.conversion import convert_settings
from aks_flex_node.agent.config.loader import LoadedConfig, load_text
from aks_flex_node.agent.config.parser import ConfigDocument
from aks_flex_node.agent.config.problems import ConfigProblem, InvalidConfigError
from aks_flex_node.agent.config.sources import from_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.settings.models import NodeConfig

Settings: TypeAlias = dict[str, object]  # dotted paths with their values, such as {"node.maxPods": 5}
TOKEN = "abcdef.0123456789abcdef"
PEM = """\
-----BEGIN CERTIFICATE-----
MIIBITCByKADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHRlc3QwIBcN
MjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMA8xDTALBgNVBAMMBHRlc3Qw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQDg+q8OWJlJ5xE2ZhpCBcKvBRzTpjL
Pd5TG0mNNGtMG0AEHdy/Gwlg8ag/78D3WekP0SfPud6HGIqUYqbWhB2roxMwETAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQCg8zx2u8/F3NnFHPF1
HmBFSx5w0U9NGQxvE18MhPdEVAIgI+ugJMyTfLWJ1+j4GqxXxDARCb1rDJ22jfqK
dHxVKNA=
-----END CERTIFICATE-----
"""
CA = base64.b64encode(PEM.encode()).decode()
CLUSTER_ID = (
    "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.ContainerService/managedClusters/cluster-1"
)


def settings(values: Mapping[str, object]) -> str:
    """Returns JSON for dotted paths: `{"node.maxPods": 5}` is `{"node": {"maxPods": 5}}`."""
    nested: dict[str, object] = {}
    for path, value in values.items():
        *way, name = path.split(".")
        place = nested
        for each in way:
            inner = place.setdefault(each, {})
            assert isinstance(inner, dict)
            place = inner
        place[name] = value
    return json.dumps(nested)


def load_settings(values: Mapping[str, object], flags: Mapping[str, object] | None = None) -> LoadedConfig:
    return load_text(settings(values), "test.json", {}, flags or {})


def node_config(document: Mapping[str, object]) -> NodeConfig:
    """Returns a configuration whose values are not checked, only their types."""
    config, problems = convert_settings(from_document(ConfigDocument(dict(document)), "test").settings)
    assert not problems
    return config


def load_plain(text: str, name: str = "test") -> LoadedConfig:
    """Loads a configuration without settings of the environment and of flags."""
    return load_text(text, name, {}, {})


def problems_of(
    text: str, env: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> list[ConfigProblem]:
    """Returns the problems of a configuration, which must be invalid."""
    with pytest.raises(InvalidConfigError) as caught:
        load_text(text, "test", env or {}, flags or {})
    assert caught.value.name == "config-invalid"
    return list(caught.value.problems)
