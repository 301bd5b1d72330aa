"""What runs inside an edge machine: it looks at everything there and prints one JSON document.

These modules travel together as one script (`snapshots.script`) that is piped to `python3 -` in the machine. So they
use the standard library only, run on Python 3.9, import nothing but one another, and leave nothing behind. They are
also the one place besides `lab.processes` that starts processes (`asking`), because they are alone in there.
"""
