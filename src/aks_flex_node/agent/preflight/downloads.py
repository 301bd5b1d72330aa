"""Check of the programs that have to be fetched: each can be, and so can its checksum."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundles import BundleManifest
from aks_flex_node.agent.artifacts.causes import host_of
from aks_flex_node.agent.artifacts.sources import identity
from aks_flex_node.agent.preflight.findings import Finding, error, fine, warning
from aks_flex_node.agent.preflight.patience import ask_twice, is_passing
from aks_flex_node.agent.preflight.seams import Cause, Request, Unheard
from aks_flex_node.agent.preflight.threads import Late, at_once
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.agent.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.artifacts import Artifact
    from aks_flex_node.agent.artifacts.sources import Place, Sources
    from aks_flex_node.agent.preflight.situations import Situation

SECONDS = 9.0
GOOD = (200, 206)
ELSEWHERE = (
    "Behind a firewall set proxy.https, a mirror as artifacts.baseURL, or an offline bundle as artifacts.bundle."
)

REMEDIES = {
    Cause.NAME: "See what the check dns says.",
    Cause.UNTRUSTED: "Set artifacts.caFile to the CA of the mirror or proxy, and look at the clock.",
    Cause.SILENCE: ELSEWHERE,
}


def artifacts(situation: Situation) -> Iterator[Finding]:
    needed = missing(situation)
    if bundle := situation.config.artifacts.bundle:
        yield from _in_bundle(situation, bundle, needed)
    elif needed:
        yield from _reachable(situation, needed)
    else:
        yield fine("all are on this machine")


def missing(situation: Situation) -> list[Artifact]:
    """What is neither installed nor fetched already; each file once, whoever needs something of it."""
    programs = [program for spec in situation.specs for program in spec.programs]
    wanted = [program for program in programs if not situation.exists(f"{program.path}/.manifest.json")]
    needed = {artifact.url: artifact for program in wanted for artifact in program.artifacts}
    here = cached(situation)
    return [artifact for artifact in needed.values() if not _fetched(artifact, here)]


def _fetched(artifact: Artifact, here: dict[str, set[str]]) -> bool:
    return artifact.name in here.get(identity(artifact.url), ()) or artifact.name in here.get(artifact.digest, ())


def cached(situation: Situation) -> dict[str, set[str]]:
    """The names of files in the cache, by the URLs they came from and by their digests."""
    folder = f"{situation.config.paths.data_dir}/artifacts"
    found: dict[str, set[str]] = {}
    for name in situation.names(folder):
        files = {file for file in situation.names(f"{folder}/{name}") if not file.endswith((".partial", ".json"))}
        for key in (name.replace("-", ":", 1), *urls(situation.text(f"{folder}/{name}/.origin.json"))):
            found.setdefault(key, set()).update(files)
    return found


def urls(origin: str) -> list[str]:
    try:
        return [str(url) for url in json.loads(origin)["urls"]]
    except (ValueError, KeyError, TypeError):
        return []


def places(situation: Situation) -> list[str]:
    """The URLs that will be asked, through the mirror if there is one."""
    if situation.config.artifacts.bundle:
        return []
    return [ways(situation).place(artifact.url).asked for artifact in missing(situation)]


def ways(situation: Situation) -> Sources:
    """How files get here: through a mirror, by a proxy, or straight."""
    return artifact_sources(situation.config)


def _reachable(situation: Situation, needed: list[Artifact]) -> Iterator[Finding]:
    end, troubles = time.monotonic() + SECONDS, []
    for artifact, call in at_once(lambda artifact: _trouble(situation, artifact), needed):
        try:
            troubles.append(call.wait(end))
        except Late:
            troubles.append(error(f"{artifact.name} could not be asked for within {SECONDS:g} s.", ELSEWHERE))
    found = [trouble for trouble in dict.fromkeys(troubles) if trouble]  # a host that is away is told of once
    yield from found or [fine(f"{pluralize(len(needed), 'file')} to fetch, and there")]


def _trouble(situation: Situation, artifact: Artifact) -> Finding | None:
    """What would go wrong with fetching it."""
    place = ways(situation).place(artifact.url)
    try:
        status = ask_twice(situation.network, Request(place.asked, first_byte=True)).status
        if status not in GOOD:
            return _refused(place, artifact, status)
        return None if _has_checksum(situation, artifact) else _unverified(place, artifact)
    except Unheard as silence:
        host = host_of(place.asked)
        return error(f"Nothing can be fetched from {host}: {silence.words}.", REMEDIES[silence.cause])


def _refused(place: Place, artifact: Artifact, status: int) -> Finding:
    if status in {404, 410}:
        return error(f"There is no {place}.", f"Check {artifact.component}.version, and what the mirror has.")
    if is_passing(status):
        return warning(
            f"{place} answers with status {status} just now.", "It will be tried again when it is fetched."
        )
    return error(f"{place} was refused with status {status}.", f"Try `curl -v` on it. {ELSEWHERE}")


def _unverified(place: Place, artifact: Artifact) -> Finding:
    return error(
        f"There is no checksum of {place}, so nobody could tell that it is the right file.",
        f"Put the publisher's checksum file beside it, or set {artifact.component}.sha256.",
    )


def _has_checksum(situation: Situation, artifact: Artifact) -> bool:
    if artifact.digest:
        return True
    asked = (Request(ways(situation).place(url).asked, first_byte=True) for url in artifact.checksums)
    statuses = (ask_twice(situation.network, request).status for request in asked)
    return any(status in GOOD or is_passing(status) for status in statuses)


def _in_bundle(situation: Situation, bundle: str, needed: list[Artifact]) -> Iterator[Finding]:
    again = "Make it with `aks-flex-node artifacts bundle`, with the configuration of this machine."
    if not situation.exists(bundle):
        yield error(f"There is no bundle at {bundle}.", f"{again} Or correct artifacts.bundle.")
        return
    if not situation.names(bundle):
        yield fine(f"{bundle} is there; what is in the archive is checked when it is used")
        return
    manifest = read_manifest(situation, bundle)
    if manifest is None:
        yield error(f"The manifest.json of the bundle {bundle} is missing or makes no sense.", again)
        return
    lacking = _lacking(situation, bundle, manifest, needed)
    if lacking:
        yield error(f"The bundle {bundle} does not hold {', '.join(lacking)}.", again)
    else:
        yield fine(f"{bundle} holds all that is needed")


def read_manifest(situation: Situation, bundle: str) -> BundleManifest | None:
    try:
        return BundleManifest.parse(situation.text(f"{bundle}/manifest.json"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _lacking(situation: Situation, bundle: str, manifest: BundleManifest, needed: list[Artifact]) -> list[str]:
    held = {entry.url for entry in manifest.artifacts if situation.exists(f"{bundle}/{entry.file}")}
    return [artifact.name for artifact in needed if identity(artifact.url) not in held]
