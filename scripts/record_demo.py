"""Records a command as an animated SVG: `python scripts/record_demo.py FILE -- COMMAND…`.

`make recording` uses it for docs/images/try.svg, which the README shows. The picture needs no script and no player:
all lines are in it once, and one CSS animation scrolls them at the recorded times. Long pauses are shortened.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS, ROWS = 112, 30
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 18, 8.4, 14
MAX_PAUSE = 2.0  # seconds: a longer pause is shortened to this
END_PAUSE = 6.0  # seconds that the last lines stay before the picture starts again
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-B0-2]")
TITLE = re.compile(r"\d+\. ")


@dataclass(frozen=True)
class Line:
    at: float  # seconds since the start
    text: str


def record(command: list[str]) -> list[Line]:
    """Runs a command on a pseudo-terminal, and returns its lines with their times."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "dumb", "NO_COLOR": "1"}
    start, lines, rest = time.monotonic(), [Line(0.0, f"$ {' '.join(command)}")], ""
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(theirs)
        while chunk := read(ours):
            sys.stdout.write(chunk)
            sys.stdout.flush()
            *whole, rest = (rest + chunk).split("\n")
            lines += [Line(time.monotonic() - start, clean(text)) for text in whole]
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command[0]} exited with {process.returncode}.")
    return lines


def read(descriptor: int) -> str:
    try:
        return os.read(descriptor, 65536).decode(errors="replace")
    except OSError:  # the other side of a pseudo-terminal was closed
        return ""


def clean(text: str) -> str:
    """A line as a terminal shows it at its end: without control sequences and what was overwritten."""
    return ANSI.sub("", text).rstrip("\r").rpartition("\r")[2].expandtabs()[:COLUMNS].rstrip()


def shortened(lines: list[Line]) -> list[Line]:
    """The same lines, without long pauses."""
    shown, at, before = [], 0.0, 0.0
    for line in lines:
        at, before = at + min(MAX_PAUSE, line.at - before), line.at
        shown.append(Line(at, line.text))
    return shown


def svg(lines: list[Line]) -> str:
    """The picture. What is below the last line of the moment is outside of its frame."""
    total = lines[-1].at + END_PAUSE
    width, height = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN, ROWS * LINE_HEIGHT + 2 * MARGIN
    steps: dict[str, int] = {}
    for count, line in enumerate(lines, 1):
        steps[f"{100 * line.at / total:.2f}"] = (
            ROWS - count
        ) * LINE_HEIGHT  # several lines at one moment are one step
    frames = "".join(f"{share}%{{transform:translateY({offset}px)}}" for share, offset in steps.items())
    texts = "\n".join(
        f'<text y="{MARGIN + number * LINE_HEIGHT}"{css_class(line.text)}>{escape(line.text)}</text>'
        for number, line in enumerate(lines, 1)
        if line.text
    )
    last = (ROWS - len(lines)) * LINE_HEIGHT
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<title>A recording of make try: a machine joins, is updated, upgraded, repaired and removed</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", monospace; fill: #d7dde5; white-space: pre; }}
.title {{ fill: #7cc7ff; font-weight: 600; }} .command {{ fill: #9be49b; }}
#lines {{ animation: play {total:.1f}s step-end infinite; transform: translateY({last}px); }}
@keyframes play {{ {frames} }}
@media (prefers-reduced-motion: reduce) {{ #lines {{ animation: none; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#12161c"/>
<clipPath id="frame"><rect width="{width:.0f}" height="{MARGIN + ROWS * LINE_HEIGHT + 5}"/></clipPath>
<g clip-path="url(#frame)"><g transform="translate({MARGIN} 0)"><g id="lines">
{texts}
</g></g></g>
</svg>
"""


def css_class(text: str) -> str:
    if TITLE.match(text):
        return ' class="title"'
    return ' class="command"' if re.match(r"\s*(\$|\S+#) ", text) else ""


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        raise SystemExit("usage: python scripts/record_demo.py FILE -- COMMAND…")
    target, _, *command = sys.argv[1:]
    Path(target).write_text(svg(shortened(record(command))))


if __name__ == "__main__":
    main()
