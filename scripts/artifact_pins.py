"""Adds the hashes of publishers' files to the table that ships with the agent (artifacts/pins.txt).

Reads the publishers' checksum files over https with the system's CAs. A hash that differs from the table is an
error: a publisher does not change a release. usage: python scripts/artifact_pins.py KUBERNETES_VERSION…
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.cache import ArtifactCache
from aks_flex_node.agent.artifacts.fetcher import ArtifactFetcher
from aks_flex_node.agent.artifacts.trust import PINS, LocalDigests, parse_checksums
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.agent.machine import Machine
from aks_flex_node.retry import Retrier, RetryBackoff
from aks_flex_rp.resource.versions import ALSO_TESTED, tested_components

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.artifacts.digest import Digest
    from aks_flex_node.agent.artifacts.model import Artifact

FILE = Path(__file__).parents[1] / "src/aks_flex_node/agent/artifacts" / PINS
HEAD = (
    "# Hashes of publishers' files, by URL. Made by scripts/artifact_pins.py from the publishers' checksum files.\n"
)


def artifacts(kubernetes: str) -> Iterator[Artifact]:
    """Yields the files of a Kubernetes version and of the component versions that are tested with it."""
    tested = tested_components(kubernetes)
    rows = [tested, *({**tested, name: other} for name, others in ALSO_TESTED.items() for other in others)]
    for row in rows:
        values = ", ".join(
            f'"{name}": {{"version": "{text}"}}' for name, text in (("kubernetes", kubernetes), *row.items())
        )
        config = load_text(f"{{{values}}}", "versions", {}, {}).config
        for arch in ("amd64", "arm64"):
            for component in SEQUENCE:
                for program in component.desired(config, Machine(arch=arch)).programs:
                    yield from program.artifacts


def read_published(wanted: Sequence[Artifact]) -> dict[str, Digest]:
    with tempfile.TemporaryDirectory() as folder:
        retrier = Retrier(3, RetryBackoff(), threading.Event())
        fetcher = ArtifactFetcher(ArtifactCache(Path(folder)), DownloadOptions(), retrier, LocalDigests(), None)
        with closing(fetcher):
            return {each.publisher_url: fetcher.trusted_digest(each).digest for each in wanted}


def main(versions: Sequence[str]) -> int:
    wanted = {each.publisher_url: each for version in versions for each in artifacts(version)}
    known, found = parse_checksums(FILE.read_text()), read_published(list(wanted.values()))
    changed = [url for url, digest in found.items() if known.get(url, digest) != digest]
    if changed or not versions:
        print(
            "\n".join(f"{url}: the published hash differs from the table" for url in changed) or __doc__,
            file=sys.stderr,
        )
        return 1
    lines = [f"{digest.value}  {url}\n" for url, digest in sorted({**known, **found}.items())]
    FILE.write_text(HEAD + "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
