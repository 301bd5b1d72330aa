"""Takes the screenshots of the documentation: python -m tests.browser.screenshots docs/images"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from aks_flex_lab.pki import CertificateAuthority
from tests.browser.browsers import running_browser
from tests.browser.fleet_data import OLD, Fleet, node_page
from tests.browser.navigation import sign_in
from tests.browser.providers import running_pages
from tests.browser.viewports import Opened


def people_would_have(fleet: Fleet) -> None:
    """Creates the nodes of a typical plant."""
    for number in range(1, 23):
        labels = {"site": f"hall-{number % 3 + 1}", "line": str(number)}
        versions = {"versions": {"kubernetes": OLD}} if number % 7 == 0 else {}
        fleet.ready(f"press-{number:02}", nodeConfig={"labels": labels}, **versions)
    fleet.not_ready("lathe-04")
    fleet.drifted("lathe-07")
    fleet.upgrading("lathe-11")
    fleet.silent("mill-02")
    fleet.failed_to_join("oven-05")
    fleet.fetched("oven-06")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        authority = CertificateAuthority(Path(room) / "pki")
        authority.ensure()
        certificate = authority.issue("localhost", "localhost", names=("localhost", "127.0.0.1"))
        with (
            running_browser(certificate.certificate, authority.certificate) as browser,
            running_pages(authority, certificate, Path(room) / "provider") as provider,
        ):
            people_would_have(provider.fleet)
            page = Opened(browser)()
            sign_in(page, provider, "/?sort=state")
            page.screenshot(path=folder / "fleet.png")
            page.goto(f"{provider.url}{node_page('lathe-04')}")
            page.screenshot(path=folder / "node.png")
            page.context.close()


if __name__ == "__main__":
    main()
