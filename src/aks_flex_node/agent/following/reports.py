"""What the provider is told of this node: conditions with the real cause, in a person's words. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node import __version__
from aks_flex_node.agent.config.masking import public
from aks_flex_node.agent.config.secret import MASK
from aks_flex_node.agent.works import Outcome, Result

if TYPE_CHECKING:
    from aks_flex_node.agent.following.notes import Notes
    from aks_flex_node.agent.following.sights import Sight

SECRETS = re.compile(  # besides what is secret in any text: tokens for Azure, and values that are called so
    r"(?i)(?<=bearer )\S+|\beyJ[\w-]+\.[\w-]+\.[\w-]*|(?<=://)[^/\s\"']+(?=@)"
    r"|\b(?:client[-_]?secret|secret|password|client-key-data|accountkey)[\"']?\s*[:=]\s*[\"']?[^\s\"',;&]+"
)
LONGEST = 2000


@dataclass(frozen=True)
class Situation:
    notes: Notes
    sight: Sight
    current: str = ""  # the configVersion in effect
    waiting: str = ""  # the one that is wanted and is not
    outcome: Outcome | None = None  # of the last update
    failed: Outcome | None = None  # the version that was tried and did not work, as long as it is wanted
    working: str = ""  # the work that is under way
    fought: tuple[str, ...] = ()  # subjects that somebody else changes again and again
    agent: str = ""  # why a new version of the agent did not run
    tunnel: Outcome | None = None  # of the last look after the tunnel, if that failed


def report(situation: Situation) -> dict[str, Any]:
    notes = situation.notes
    told: dict[str, Any] = {"conditions": conditions(situation), "agentVersion": __version__}
    if situation.current:
        told["appliedConfigVersion"] = situation.current
    if notes.applied:
        told["lastConfigApplied"] = notes.applied
    if situation.sight.node and situation.sight.node.version:
        told["kubeletVersion"] = situation.sight.node.version
    told["driftCount"] = notes.drifts
    if notes.drifted:
        told["lastDriftDetected"] = notes.drifted
    return told


def conditions(situation: Situation) -> list[dict[str, str]]:
    notes, sight = situation.notes, situation.sight
    found = [
        _ready(sight),
        _applied(situation),
        _drifted(situation),
        *([] if sight.by_token else [_expiring(sight)]),
        _condition("UpgradeFailed", situation.failed is not None, *_cause(situation.failed, "NoFailure")),
    ]
    if notes.credentials:
        found.append(_condition("CredentialsRefused", True, "NotProven", notes.credentials))
    if situation.tunnel:
        found.append(_condition("TunnelNotRenewed", True, *_cause(situation.tunnel, "")))
    if situation.agent:
        found.append(_condition("AgentUpdateFailed", True, "NotProven", situation.agent))
    return found


def _ready(sight: Sight) -> dict[str, str]:
    if sight.lost:
        return _condition("Ready", False, "CredentialsLost", f"This node is being recovered: {sight.lost}.")
    if sight.fallen:
        words = "; ".join(f"{name.removesuffix('.service')} does not run: {why}" for name, why in sight.fallen)
        return _condition("Ready", False, "ServiceFailed", words)
    if sight.node is None:
        why = sight.unknown or "the cluster was not asked yet"
        return _condition("Ready", None, "ApiServerUnreachable", f"The services run, but {why}")
    node = sight.node
    return _condition("Ready", node.ready, node.reason or "KubeletReady", node.message)


def _applied(situation: Situation) -> dict[str, str]:
    name, wanted = "ConfigApplied", situation.waiting
    if situation.working == "update":
        what = f"Configuration {wanted}" if wanted else "The new configuration"
        return _condition(name, False, "InProgress", f"{what} is being applied.")
    if not wanted:
        return _condition(name, True, "Applied", f"Configuration {situation.current or 'of the join'} is in effect.")
    outcome = situation.failed or situation.outcome
    if outcome is None or outcome.version not in {"", wanted} or outcome.result == Result.DONE.value:
        return _condition(name, False, "Pending", f"Configuration {wanted} is about to be applied.")
    return _condition(name, False, outcome.reason or "Failed", _told(outcome))


def _drifted(situation: Situation) -> dict[str, str]:
    if situation.fought:
        words = (
            f"Something else changes these again and again, so they are left alone: {', '.join(situation.fought)}."
        )
        return _condition("Drifted", True, "Fighting", words)
    if situation.notes.drift:
        return _condition("Drifted", True, "DriftFound", "; ".join(situation.notes.drift))
    return _condition("Drifted", False, "NoDrift", "The machine is as its configuration wants it.")


def _expiring(sight: Sight) -> dict[str, str]:
    days = sight.seconds / 86400
    if not sight.certificate or sight.seconds <= 0:
        return _condition("CertificateExpiring", True, "Expired", "The kubelet has no valid certificate.")
    words = f"The kubelet's certificate is valid for {days:.0f} more days."
    return _condition("CertificateExpiring", sight.expiring, "NotRenewed" if sight.expiring else "Valid", words)


def _cause(outcome: Outcome | None, otherwise: str) -> tuple[str, str]:
    return (outcome.reason or "Failed", _told(outcome)) if outcome else (otherwise, "")


def _told(outcome: Outcome) -> str:
    return f"{outcome.message} {outcome.hint}".strip()


def _condition(kind: str, status: bool | None, reason: str, message: str) -> dict[str, str]:
    words = {True: "True", False: "False", None: "Unknown"}
    said = {"type": kind, "status": words[status], "reason": _word(reason)}
    return {**said, "message": scrubbed(message)} if message else said


def _word(reason: str) -> str:
    """A reason is one word, as Kubernetes writes it; error names have hyphens."""
    return "".join(part[:1].upper() + part[1:] for part in reason.split("-"))


def scrubbed(text: str) -> str:
    """Words of other programs, without anything in them that looks like a token."""
    return (public(SECRETS.sub(MASK, text)) or "")[:LONGEST]
