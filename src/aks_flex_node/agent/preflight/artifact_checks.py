"""Check that every missing artifact and its checksum can be fetched, or is in the offline bundle."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundle import BundleManifest
from aks_flex_node.agent.http.connections import url_host
from aks_flex_node.agent.http.download_options import url_identity
from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning
from aks_flex_node.agent.preflight.interfaces import (
    CallTimeout,
    ProbeFailed,
    ProbeFailure,
    ProbeRequest,
    ask_with_retry,
    is_retryable,
    run_concurrently,
)
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.agent.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.artifacts import Artifact
    from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl
    from aks_flex_node.agent.preflight.check import PreflightContext

REACH_SECONDS = 9.0
SUCCESS_STATUSES = (200, 206)
FIREWALL_HINT = (
    "Behind a firewall set proxy.https, a mirror as artifacts.baseURL, or an offline bundle as artifacts.bundle."
)

REMEDIES = {
    ProbeFailure.NAME: "See what the check dns says.",
    ProbeFailure.UNTRUSTED: "Set artifacts.caFile to the CA of the mirror or proxy, and look at the clock.",
    ProbeFailure.SILENCE: FIREWALL_HINT,
}


def check_artifacts(context: PreflightContext) -> Iterator[CheckFinding]:
    needed = missing_artifacts(context)
    if bundle := context.config.artifacts.bundle:
        yield from _in_bundle(context, bundle, needed)
    elif needed:
        yield from _reachable(context, needed)
    else:
        yield ok("all are on this machine")


def missing_artifacts(context: PreflightContext) -> list[Artifact]:
    """What is neither installed nor fetched already; each file once, whoever needs something of it."""
    programs = [program for spec in context.specs for program in spec.programs]
    wanted = [program for program in programs if not context.exists(f"{program.path}/.manifest.json")]
    needed = {artifact.url: artifact for program in wanted for artifact in program.artifacts}
    here = cached_files(context)
    return [artifact for artifact in needed.values() if not _fetched(artifact, here)]


def _fetched(artifact: Artifact, here: dict[str, set[str]]) -> bool:
    return artifact.name in here.get(url_identity(artifact.url), ()) or artifact.name in here.get(artifact.digest, ())


def cached_files(context: PreflightContext) -> dict[str, set[str]]:
    """The names of files in the cache, by the URLs they came from and by their digests."""
    folder = f"{context.config.paths.data_dir}/artifacts"
    found: dict[str, set[str]] = {}
    for name in context.names(folder):
        files = {file for file in context.names(f"{folder}/{name}") if not file.endswith((".partial", ".json"))}
        for key in (name.replace("-", ":", 1), *origin_urls(context.text(f"{folder}/{name}/.origin.json"))):
            found.setdefault(key, set()).update(files)
    return found


def origin_urls(origin: str) -> list[str]:
    try:
        return [str(url) for url in json.loads(origin)["urls"]]
    except (ValueError, KeyError, TypeError):
        return []


def request_urls(context: PreflightContext) -> list[str]:
    """The URLs that will be asked, through the mirror if there is one."""
    if context.config.artifacts.bundle:
        return []
    return [context_options(context).resolve(artifact.url).url for artifact in missing_artifacts(context)]


def context_options(context: PreflightContext) -> DownloadOptions:
    """How files get here: through a mirror, by a proxy, or straight."""
    return artifact_sources(context.config)


def _reachable(context: PreflightContext, needed: list[Artifact]) -> Iterator[CheckFinding]:
    end, troubles = time.monotonic() + REACH_SECONDS, []
    for artifact, call in run_concurrently(lambda artifact: _trouble(context, artifact), needed):
        try:
            troubles.append(call.wait(end))
        except CallTimeout:
            troubles.append(
                error(f"{artifact.name} could not be asked for within {REACH_SECONDS:g} s.", FIREWALL_HINT)
            )
    found = [trouble for trouble in dict.fromkeys(troubles) if trouble]  # a host that is away is told of once
    yield from found or [ok(f"{pluralize(len(needed), 'file')} to fetch, and there")]


def _trouble(context: PreflightContext, artifact: Artifact) -> CheckFinding | None:
    """What would go wrong with fetching it."""
    source = context_options(context).resolve(artifact.url)
    try:
        status = ask_with_retry(context.network, ProbeRequest(source.url, first_byte=True)).status
        if status not in SUCCESS_STATUSES:
            return _refused(source, artifact, status)
        return None if _has_checksum(context, artifact) else _unverified(source, artifact)
    except ProbeFailed as silence:
        host = url_host(source.url)
        return error(f"Nothing can be fetched from {host}: {silence.reason}.", REMEDIES[silence.cause])


def _refused(location: DownloadUrl, artifact: Artifact, status: int) -> CheckFinding:
    if status in {404, 410}:
        return error(f"There is no {location}.", f"Check {artifact.component}.version, and what the mirror has.")
    if is_retryable(status):
        return warning(
            f"{location} answers with status {status} just now.", "It will be tried again when it is fetched."
        )
    return error(f"{location} was refused with status {status}.", f"Try `curl -v` on it. {FIREWALL_HINT}")


def _unverified(location: DownloadUrl, artifact: Artifact) -> CheckFinding:
    return error(
        f"There is no checksum of {location}, so nobody could tell that it is the right file.",
        f"Put the publisher's checksum file beside it, or set {artifact.component}.sha256.",
    )


def _has_checksum(context: PreflightContext, artifact: Artifact) -> bool:
    if artifact.digest:
        return True
    asked = (ProbeRequest(context_options(context).resolve(url).url, first_byte=True) for url in artifact.checksums)
    statuses = (ask_with_retry(context.network, request).status for request in asked)
    return any(status in SUCCESS_STATUSES or is_retryable(status) for status in statuses)


def _in_bundle(context: PreflightContext, bundle: str, needed: list[Artifact]) -> Iterator[CheckFinding]:
    again = "Make it with `aks-flex-node artifacts bundle`, with the configuration of this machine."
    if not context.exists(bundle):
        yield error(f"There is no bundle at {bundle}.", f"{again} Or correct artifacts.bundle.")
        return
    if not context.names(bundle):
        yield ok(f"{bundle} is there; what is in the archive is checked when it is used")
        return
    manifest = read_manifest(context, bundle)
    if manifest is None:
        yield error(f"The manifest.json of the bundle {bundle} is missing or makes no sense.", again)
        return
    lacking = _lacking(context, bundle, manifest, needed)
    if lacking:
        yield error(f"The bundle {bundle} does not hold {', '.join(lacking)}.", again)
    else:
        yield ok(f"{bundle} holds all that is needed")


def read_manifest(context: PreflightContext, bundle: str) -> BundleManifest | None:
    try:
        return BundleManifest.parse(context.text(f"{bundle}/manifest.json"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _lacking(context: PreflightContext, bundle: str, manifest: BundleManifest, needed: list[Artifact]) -> list[str]:
    held = {entry.url for entry in manifest.artifacts if context.exists(f"{bundle}/{entry.file}")}
    return [artifact.name for artifact in needed if url_identity(artifact.url) not in held]
