from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.aks_pool.pool_ids import (
    PoolId,
    check_machine_name,
    configured_pool,
    machine_name,
    parse_pool_id,
)
from aks_flex_node.errors import CommandUsageError, ConfigError
from tests.unit.agent.config.builders import node_config

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings

CLUSTER = "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.ContainerService/managedClusters/cluster-1"
POOL = f"{CLUSTER}/agentPools/edge"


@pytest.mark.parametrize("text", [POOL, f"{POOL}/", f" {POOL}\n", POOL.replace("resourceGroups", "resourcegroups")])
def test_pool_id_is_parsed_as_azure_prints_it(text: str) -> None:
    pool = parse_pool_id(text)
    assert pool == PoolId("sub-1", "group-1", "cluster-1", "edge")
    assert (str(pool), pool.cluster_id, pool.machine_id("m1")) == (POOL, CLUSTER, f"{POOL}/machines/m1")


@pytest.mark.parametrize("text", ["", CLUSTER, f"{POOL}/machines/m1", f"{CLUSTER}/agentPools/", f"{POOL};reboot"])
def test_other_ids_are_refused_as_a_pool(text: str) -> None:
    with pytest.raises(CommandUsageError) as caught:
        parse_pool_id(text)
    assert caught.value.name == "aks-pool-id-invalid"


IN_POOL: Settings = {"targetCluster": {"resourceId": CLUSTER}, "targetAgentPoolName": "edge"}


@pytest.mark.parametrize("name", ["edge-1", "E_1", "a" * 40])
def test_name_that_aks_accepts_for_a_machine_is_valid(name: str) -> None:
    check_machine_name(name)


@pytest.mark.parametrize("name", ["edge-1.factory.example", "a" * 41, "-edge", "", "edge-1\n"])
def test_name_that_aks_does_not_accept_for_a_machine_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="does not accept") as caught:
        check_machine_name(name)
    assert caught.value.name == "machine-name-invalid"


def test_machine_is_named_as_the_node_unless_configured() -> None:
    config = node_config({"azure": IN_POOL})
    assert configured_pool(config) == parse_pool_id(POOL)
    assert machine_name(config, "n1") == "n1"
    assert machine_name(node_config({"azure": IN_POOL, "aks": {"machineName": "m1"}}), "n1") == "m1"
