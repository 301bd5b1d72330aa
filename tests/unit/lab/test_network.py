"""Tests of addresses: all in the benchmark range, and none assigned twice."""

from __future__ import annotations

import ipaddress

import pytest

from aks_flex_lab import network
from aks_flex_lab.errors import LabError


def test_all_lab_addresses_are_in_benchmark_range() -> None:
    allowed = ipaddress.IPv4Network(network.RANGE)
    site = network.EdgeSite("a", network.LAST_SITE)
    addresses = [network.DNS, network.API, network.REGISTRY, network.MIRROR, network.API_SERVICE, network.DNS_SERVICE]

    for address in (*addresses, site.gateway, site.uplink, site.address(network.LAST_MACHINE)):
        assert ipaddress.ip_address(address) in allowed
    for subnet in (network.PODS, network.SERVICES, site.subnet):
        assert ipaddress.IPv4Network(subnet).subnet_of(allowed)


def test_pod_and_service_ranges_do_not_overlap() -> None:
    assert not ipaddress.ip_network(network.PODS).overlaps(ipaddress.ip_network(network.SERVICES))
    assert ipaddress.ip_address(network.DNS_SERVICE) in ipaddress.ip_network(network.SERVICES)


def test_full_site_refuses_more_machines() -> None:
    everything = set(range(network.FIRST_MACHINE, network.LAST_MACHINE + 1))

    assert network.free_machine_number(everything - {42}) == 42
    with pytest.raises(LabError, match="cannot have more machines"):
        network.free_machine_number(everything)
