"""Takes the screenshots of the documentation: python -m tests.browser.screenshots docs/images"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.pki import CertificateAuthority
from tests.browser.browsers import running_browser
from tests.browser.fleet_data import OLD, Fleet, node_page
from tests.browser.navigation import fill_in, press, sign_in
from tests.browser.providers import running_pages
from tests.browser.test_pools import fill, pool_address
from tests.browser.viewports import Opened
from tests.service.rp.api.simulated_fleet import BETTER, SimulatedFleet
from tests.wait import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import Provider


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


def preview_of_pool(page: Page, provider: Provider) -> None:
    """Opens the preview of a changed template, of a pool with nodes."""
    fill(provider, "edge", 3)
    page.goto(f"{provider.url}{pool_address('edge')}/edit")
    fill_in(page, {"Labels": "site=north\nline=7", "Maximum pods": "110", "Start time": "22:00"})
    page.get_by_label("Sunday").check()
    press(page, "Preview")


def running_rollout(page: Page, provider: Provider) -> None:
    """Opens a roll-out in its third wave."""
    fleet = SimulatedFleet(provider.running, 12)
    fleet.write(BETTER)
    fleet.stuck = set(sorted(fleet.names)[-3:])
    fleet.start("winter-26", waves=["1", "30%", "100%"], maxUnavailable="5")
    fleet.work_until("Running", name="winter-26")

    def is_far() -> bool:
        fleet.work()
        waves = fleet.shown("winter-26")["waveProgress"]
        return bool(len(waves) == 3 and waves[2]["updated"] and waves[2]["updating"])

    until(is_far, "the third wave runs", 60)
    page.goto(f"{provider.url}{pool_address(fleet.pool)}/rollouts/winter-26")


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
            preview_of_pool(page, provider)
            page.screenshot(path=folder / "pool-preview.png")
            running_rollout(page, provider)
            page.screenshot(path=folder / "rollout.png")
            page.context.close()


if __name__ == "__main__":
    main()
