"""Check that every missing artifact and its checksum can be downloaded, or is in the offline bundle."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundle import BundleManifest
from aks_flex_node.agent.artifacts.cache import PUBLISHED_KEY
from aks_flex_node.agent.http.client import is_retryable
from aks_flex_node.agent.http.connections import url_host
from aks_flex_node.agent.http.download_options import DownloadOptions, url_identity
from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.agent.preflight.interfaces import (
    CallTimeout,
    ProbeFailed,
    ProbeFailure,
    ProbeRequest,
    run_concurrently,
)
from aks_flex_node.agent.reconcile.program_stager import artifact_sources, local_digests, require_encrypted
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.artifacts.model import Artifact

REACH_SECONDS = 9.0
SUCCESS_STATUSES = (200, 206)
FIREWALL_HINT = (
    "Behind a firewall, set `proxy.https`, a mirror (`artifacts.baseURL`) or an offline bundle (`artifacts.bundle`)."
)

REMEDIES = {
    ProbeFailure.NAME: "See the result of the check dns.",
    ProbeFailure.UNTRUSTED: "Set `artifacts.caFile` to the CA of the mirror or proxy, and check the clock.",
    ProbeFailure.SILENCE: FIREWALL_HINT,
}


def check_artifacts(context: PreflightContext) -> Iterator[CheckFinding]:
    needed = missing_artifacts(context)
    if bundle := context.config.artifacts.bundle:
        yield from _in_bundle(context, bundle, needed)
    elif needed:
        yield from _reachable(context, needed)
    else:
        yield ok("all artifacts are on this machine")


def missing_artifacts(context: PreflightContext) -> list[Artifact]:
    """Returns the artifacts that are neither installed nor in the cache, without duplicates."""
    programs = [program for spec in context.specs for program in spec.programs]
    not_installed = [program for program in programs if not context.exists(f"{program.path}/.manifest.json")]
    needed = {artifact.url: artifact for program in not_installed for artifact in program.artifacts}
    folder = f"{context.config.paths.data_dir}/artifacts"
    cached: dict[str, set[str]] = {}
    for name in context.names(folder):
        files = {file for file in context.names(f"{folder}/{name}") if not file.endswith((".partial", ".json"))}
        for key in (name.replace("-", ":", 1), *published_urls(context.text(f"{folder}/{name}/.origin.json"))):
            cached.setdefault(key, set()).update(files)
    return [
        artifact
        for artifact in needed.values()
        if not any(artifact.name in cached.get(key, ()) for key in (artifact.publisher_url, artifact.digest) if key)
    ]


def published_urls(origin: str) -> list[str]:
    """Returns the publisher's URLs of which the publisher gave the digest of a cached file."""
    try:
        return [str(url) for url in json.loads(origin)[PUBLISHED_KEY]]
    except (ValueError, KeyError, TypeError):
        return []


def request_urls(context: PreflightContext) -> list[str]:
    """Returns the URLs to request, on the mirror if one is configured."""
    if context.config.artifacts.bundle:
        return []
    return [context_options(context).resolve(artifact.url).url for artifact in missing_artifacts(context)]


def context_options(context: PreflightContext) -> DownloadOptions:
    """Returns the mirror, proxy and CA settings of downloads."""
    return artifact_sources(context.config)


def _reachable(context: PreflightContext, needed: list[Artifact]) -> Iterator[CheckFinding]:
    end, problems = time.monotonic() + REACH_SECONDS, []
    for artifact, call in run_concurrently(lambda artifact: _download_problem(context, artifact), needed):
        try:
            problems.append(call.wait(end))
        except CallTimeout:
            problems.append(
                warning(
                    f"{artifact.name} could not be checked within {REACH_SECONDS:g} s.",
                    "The download is tried nevertheless.",
                )
            )
    found = [problem for problem in dict.fromkeys(problems) if problem]  # report an unreachable host once
    yield from found or [ok(f"{pluralize(len(needed), 'file')} available for download")]


def _download_problem(context: PreflightContext, artifact: Artifact) -> CheckFinding | None:
    """Returns the problem that a download of the artifact would have, if any."""
    source = context_options(context).resolve(artifact.url)
    try:
        require_encrypted(context_options(context), [artifact])
        status = context.network.ask_with_retry(ProbeRequest(source.url, first_byte=True)).status
        if status not in SUCCESS_STATUSES:
            if status in {404, 410}:
                return error(
                    f"{source} was not found.", f"Check `{artifact.component}.version` and the content of the mirror."
                )
            if is_retryable(status):
                return warning(
                    f"{source} currently responds with status {status}.", "The download is retried automatically."
                )
            return error(
                f"The request for {source} was rejected with status {status}.",
                f"Run `curl -v` with this URL. {FIREWALL_HINT}",
            )
        return (
            None
            if _has_checksum(context, artifact)
            else error(
                f"No trusted checksum was found for {source}, so the file cannot be verified.",
                artifact.pin_hint,
            )
        )
    except ProbeFailed as failure:
        host = url_host(source.url)
        return error(f"Downloads from {host} fail: {failure.reason}.", REMEDIES[failure.cause])
    except ArtifactError as refused:
        return error(refused.message, refused.hint)


def _has_checksum(context: PreflightContext, artifact: Artifact) -> bool:
    """Returns whether this machine or the publisher has a checksum of the artifact. A mirror's does not count."""
    if local_digests(context.config).find(artifact):
        return True
    if artifact.signed_list:
        signature = f"{context_options(context).resolve(artifact.signed_list).url}.asc"
        return context.network.ask_with_retry(ProbeRequest(signature, first_byte=True)).status in SUCCESS_STATUSES
    requests = (ProbeRequest(url, first_byte=True, system_cas=True) for url in artifact.checksums)
    statuses = (context.network.ask_with_retry(request).status for request in requests)
    try:
        return any(status in SUCCESS_STATUSES or is_retryable(status) for status in statuses)
    except ProbeFailed:
        if context_options(context).resolve(artifact.url).url == artifact.publisher_url:
            raise
        return False  # a machine with a mirror may not reach the publisher


def _in_bundle(context: PreflightContext, bundle: str, needed: list[Artifact]) -> Iterator[CheckFinding]:
    remedy = "Create it with `aks-flex-node artifacts bundle` and the configuration of this machine."
    if not context.exists(bundle):
        yield error(f"The bundle {bundle} was not found.", f"{remedy} Or correct `artifacts.bundle`.")
        return
    if not context.names(bundle):
        yield ok(f"{bundle} exists; its content is verified when it is used")
        return
    manifest = read_manifest(context, bundle)
    if manifest is None:
        yield error(f"The manifest.json of the bundle {bundle} is missing or invalid.", remedy)
        return
    available = {entry.url for entry in manifest.artifacts if context.exists(f"{bundle}/{entry.file}")}
    missing = [artifact.name for artifact in needed if url_identity(artifact.url) not in available]
    if missing:
        yield error(f"The bundle {bundle} does not contain {', '.join(missing)}.", remedy)
    else:
        yield ok(f"{bundle} contains all artifacts")


def read_manifest(context: PreflightContext, bundle: str) -> BundleManifest | None:
    try:
        return BundleManifest.parse(context.text(f"{bundle}/manifest.json"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
