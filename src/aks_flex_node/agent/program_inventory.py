"""Programs that a configuration requires: lists them, writes an offline bundle, and removes unused versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundle_writer import find_digests, make_bundle
from aks_flex_node.agent.artifacts.cache import clean_cache
from aks_flex_node.agent.artifacts.model import MANIFEST_NAME, TreeManifest
from aks_flex_node.agent.components.catalog import ALL, SEQUENCE
from aks_flex_node.agent.reconcile import program_stager
from aks_flex_node.agent.reconcile.observer import find_damage
from aks_flex_node.agent.reconcile.resources import Symlink
from aks_flex_node.host.actions import RemoveTree
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.bundle import BundleManifest
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@frozen
class ProgramArtifact:
    component: str
    version: str
    state: str  # "installed", or the problem
    url: str


def list_artifacts(engine: Engine) -> list[ProgramArtifact]:
    """Returns all artifacts of the configuration and whether they are installed."""
    found: list[ProgramArtifact] = []
    for component in SEQUENCE:
        for program in component.desired(engine.config, engine.machine).programs:
            state = find_damage(engine.host, program, engine.ledger.owned(component.name)) or "installed"
            about = (program.component, program.version, state)
            found += [ProgramArtifact(*about, one.url) for one in program.artifacts]
    return found


def bundle_programs(engine: Engine, target: Path, arch: str) -> BundleManifest:
    """Downloads all programs of the configuration for one architecture into a bundle."""
    machine = replace(engine.machine, arch=arch)
    specs = [component.desired(engine.config, machine) for component in SEQUENCE]
    trees = [program_stager.program_tree(program) for spec in specs for program in spec.programs]
    sources, cache = program_stager.artifact_sources(engine.config), Path(program_stager.cache_dir(engine.config))
    program_stager.require_encrypted(replace(sources, bundle=None), [one for tree in trees for one in tree.artifacts])
    digests = program_stager.local_digests(engine.config)
    return make_bundle(trees, sources, cache, target, arch, digests=digests)


@frozen
class PinnedArtifact:
    url: str  # at the publisher, or the configured one if no publisher has the file
    digest: str  # "sha256:…" or "sha512:…"
    source: str  # who gave the digest: administrator, pin or publisher


def pin_artifacts(engine: Engine, arch: str) -> list[PinnedArtifact]:
    """Returns the digests of all artifacts of the configuration. Reads them from the publishers if needed."""
    machine, config = replace(engine.machine, arch=arch), engine.config
    specs = [component.desired(config, machine) for component in SEQUENCE]
    wanted = {each.url: each for spec in specs for program in spec.programs for each in program.artifacts}
    found = find_digests(
        list(wanted.values()),
        program_stager.artifact_sources(config),
        Path(program_stager.cache_dir(config)),
        program_stager.local_digests(config),
    )
    pairs = zip(wanted.values(), found, strict=True)
    return [PinnedArtifact(one.publisher_url or one.url, str(each.digest), each.source.value) for one, each in pairs]


def remove_downloads(config: NodeConfig) -> int:
    """Removes downloaded artifacts; returns the number of bytes freed."""
    return clean_cache(Path(program_stager.cache_dir(config)), set())


def remove_unused(engine: Engine) -> dict[str, int]:
    """Removes installed versions that are not in use; returns their paths and sizes in bytes."""
    removed: dict[str, int] = {}
    for path in unused_versions(engine):
        removed[path] = _size(engine.host, path)
        engine.host.apply(RemoveTree(path))
        for owned in engine.ledger.components.values():
            owned.paths.pop(path, None)
        engine.ledger.save()
    return removed


def unused_versions(engine: Engine) -> list[str]:
    """Returns the owned programs that the configuration does not require and no link points to."""
    specs = [component.desired(engine.config, engine.machine) for component in ALL]
    records = dict(engine.ledger.records)
    desired = {program.path for spec in specs for program in spec.programs}
    links = {one.path for spec in specs for one in spec.resources if isinstance(one, Symlink)}
    links |= {path for path, record in records.items() if record.get("kind") == "link"}
    targets = [entry.target for path in links if (entry := engine.host.stat(path))]
    paths = [path for path, record in records.items() if record.get("kind") == "program" and path not in desired]
    return [path for path in paths if not any(f"{target}/".startswith(f"{path}/") for target in targets)]


def _size(host: Host, path: str) -> int:
    manifest = TreeManifest.parse(host.read(f"{path}/{MANIFEST_NAME}"))
    return sum(file.size for file in manifest.files.values()) if manifest else 0
