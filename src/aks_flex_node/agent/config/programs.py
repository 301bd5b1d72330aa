"""The programs that a node is made of: which version of each, and where it comes from."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from aks_flex_node.agent.config.settings import Settings, Version


class Kubernetes(Settings):
    version: Version | None = Field(
        default=None, description="Version of kubelet, kubectl and kubeadm, with its patch level."
    )
    url_template: str = Field(
        default="https://dl.k8s.io/v%s/bin/linux/%s/%s",
        description="Version, architecture, program; or version and architecture of a kubernetes-node tarball.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )


class Containerd(Settings):
    version: Version = Field(default="2.4.2", description="Version of containerd: 1.7 or 2.x.")
    url: str = Field(
        default="https://github.com/containerd/containerd/releases/download/v%s/containerd-%s-linux-%s.tar.gz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
    pause_image: str = Field(
        default="mcr.microsoft.com/oss/kubernetes/pause:3.9", description="Image of pod sandboxes."
    )
    metrics_address: str = Field(
        default="127.0.0.1:10257", description="Where containerd serves its metrics; empty for nowhere."
    )


class Runc(Settings):
    version: Version = Field(default="1.5.2", description="Version of runc.")
    url: str = Field(
        default="https://github.com/opencontainers/runc/releases/download/v%s/runc.%s",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )


class Cni(Settings):
    version: Version = Field(default="1.9.1", description="Version of the CNI plugins.")
    url: str = Field(
        default="https://github.com/containernetworking/plugins/releases/download/v%s/cni-plugins-linux-%s-v%s.tgz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where they are: version, architecture, version.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
    bridge: bool = Field(
        default=True, description="Make a bridge network until the cluster's own network plugin brings its own."
    )


class Npd(Settings):
    enabled: bool = Field(default=True, description="Run node-problem-detector.")
    version: Version = Field(default="1.34.0", description="Version of node-problem-detector.")
    url: str = Field(
        default="https://github.com/kubernetes/node-problem-detector/releases/download/v%s/node-problem-detector-v%s-linux_%s.tar.gz",
        validation_alias=AliasChoices("url", "urlTemplate"),
        description="Where it is: version, version, architecture.",
    )
    sha256: dict[str, str] = Field(
        default={}, description="Expected hashes by file name; the publisher's when left out."
    )
