"""Runs in a machine: requests the kubelet's token repeatedly, and prints the CPU time of one call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

folder, times, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for _ in range(times):
    if how == "anew":
        (folder / "azure-token.json").unlink(missing_ok=True)
    subprocess.run([folder / "token.sh"], stdout=subprocess.DEVNULL, check=True)
spent = os.times()
print((spent.children_user + spent.children_system) / times)
