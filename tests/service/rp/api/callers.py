"""The callers of the service in these tests, and their roles."""

from __future__ import annotations

from tests.service.rp.api.fake_clusters import PLANT, SUBSCRIPTION

OWNER = "10000000-0000-4000-8000-000000000001"
CONTRIBUTOR = "20000000-0000-4000-8000-000000000001"
READER = "30000000-0000-4000-8000-000000000001"
GROUP_OWNER = "40000000-0000-4000-8000-000000000001"
SUBSCRIPTION_READER = "50000000-0000-4000-8000-000000000001"
EVERYWHERE = "60000000-0000-4000-8000-000000000001"
STRANGER = "70000000-0000-4000-8000-000000000001"
NODE = "80000000-0000-4000-8000-000000000001"
OTHER_NODE = "90000000-0000-4000-8000-000000000001"

GRANTS = [
    {"role": "owner", "scope": str(PLANT), "principal": OWNER},
    {"role": "contributor", "scope": str(PLANT), "principal": CONTRIBUTOR},
    {"role": "reader", "scope": str(PLANT), "principal": READER},
    {"role": "owner", "scope": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/EDGE", "principal": GROUP_OWNER},
    {"role": "reader", "scope": f"/subscriptions/{SUBSCRIPTION}", "principal": SUBSCRIPTION_READER},
    {"role": "owner", "scope": "/", "principal": EVERYWHERE},
]
