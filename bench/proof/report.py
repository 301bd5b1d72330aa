"""The benchmarks of `make bench`: commands, tables and pictures, and the pages written from their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.proof.svg_plots import bar_chart, line_chart

if TYPE_CHECKING:
    from collections.abc import Callable

    BenchmarkResult = dict[str, Any]
    from pathlib import Path


@dataclass(frozen=True)
class MarkdownTable:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        ruled = ("|".join(("", *(f" {each} " for each in row), "")) for row in (self.head, *self.rows))
        first, *others = ruled
        return "\n".join((first, "|" + "---|" * len(self.head), *others))


@dataclass(frozen=True)
class Benchmark:
    name: str  # of the bench, and of its picture
    title: str
    tells: str  # what is measured, in a sentence or two
    options: tuple[str, ...]  # besides `python -m bench.NAME`
    quick: tuple[str, ...]  # the same, to see that it works
    table: Callable[[BenchmarkResult], MarkdownTable]
    picture: Callable[[BenchmarkResult], str] | None = None  # SVG
    targets: tuple[str, ...] = field(default=())

    def command(self, *, quick: bool = False) -> str:
        return " ".join(("python -m", f"bench.{self.name}", *(self.quick if quick else self.options)))


def median_and_range(found: BenchmarkResult, unit: str = "s") -> tuple[str, str]:
    least, most = found.get("least", found.get("min")), found.get("most", found.get("max"))
    return f"{found['median']:g} {unit}", f"{least:g} to {most:g}"


def _baseline(found: BenchmarkResult) -> MarkdownTable:
    return MarkdownTable(
        ("phase", "median", "spread"), tuple((name, *median_and_range(one)) for name, one in found["seconds"].items())
    )


def _baseline_picture(found: BenchmarkResult) -> str:
    return bar_chart(
        "A join by hand, phase by phase", {name: one["median"] for name, one in found["seconds"].items()}, "s"
    )


PHASE = "phase: "
VISIBLE = 0.03  # seconds
JOINED = {
    "join": "join through the agent, to Node Ready",
    "join_returns": "the same, until the command returns",
    "baseline": "join by hand (the baseline)",
    "again": "bootstrap again",
    "verify": "verify",
    "reset": "unbootstrap",
}


def _join(found: BenchmarkResult) -> MarkdownTable:
    times = [(word, *median_and_range(found["spread"][key])) for key, word in JOINED.items()]
    ratio = ("agent over baseline", *median_and_range(found["spread"]["ratio"], "times"))
    phases = [(key, *median_and_range(one)) for key, one in found["spread"].items() if key.startswith(PHASE)]
    return MarkdownTable(("what", "median", "spread"), (*times, ratio, *phases))


def _join_picture(found: BenchmarkResult) -> str:
    """The whole beside the baseline, and the phases that can be seen at all."""
    medians = found["median"]
    whole = {JOINED[key]: medians[key] for key in ("baseline", "join", "join_returns")}
    phases = {key: value for key, value in medians.items() if key.startswith(PHASE) and value >= VISIBLE}
    return bar_chart("A join, its phases, and the baseline", {**whole, **phases}, "s")


def _upgrade(found: BenchmarkResult) -> MarkdownTable:
    rows = []
    for step, one in found["seconds"].items():
        rows.append(
            (step, *(" ".join((value, f"({spread})")) for value, spread in map(median_and_range, _steps(one))))
        )
    return MarkdownTable(
        ("upgrade of", "applied and proven", "longest gap of a pod's answers", "node not Ready"), tuple(rows)
    )


def _steps(one: BenchmarkResult) -> tuple[BenchmarkResult, ...]:
    return one["applied"], one["gap"], one["not_ready"]


REQUESTS = {
    "ours": "a poll of the provider",
    "api_server": "a GET of kube-apiserver and etcd",
    "from_cache": "the same GET out of its memory",
}


def _polls(found: BenchmarkResult) -> MarkdownTable:
    medians = found["median"]
    kinds = (("", ",.0f"), ("_a_second", ",.0f"), ("_p99_ms", ".1f"))
    rows = [
        (what, *(format(medians[f"{name}{key}"], form) for key, form in kinds)) for name, what in REQUESTS.items()
    ]
    ratios = " ".join(f"{each:g}" for each in found["ratios"])
    rows.append(("provider over kube-apiserver", f"{medians['ratio']:g} times", f"round by round: {ratios}", ""))
    return MarkdownTable(("median of the rounds", "a processor second", "a second", "p99, ms"), tuple(rows))


def _scale(found: BenchmarkResult) -> MarkdownTable:
    sizes = [key for key in found if key.isdigit()]
    rows = [
        (
            f"{int(size):,}",
            *(f"{found[size][when][key]:g}" for when in ("warm", "cold") for key in ("cpu_us", "p99_ms")),
        )
        for size in sizes
    ]
    rows.append(
        ("most over least", f"{found['flat']['cpu_us']:g} times", f"{found['flat']['p99_ms']:g} times", "", "")
    )
    steady = found["steady"]
    rows.append(
        (f"{steady['a_second']:,.0f} polls a second", f"{steady['cpu_us']:g}", f"{steady['p99_ms']:g}", "", "")
    )
    head = ("nodes", "processor time of a poll, us", "p99, ms", "after a start: us", "after a start: p99, ms")
    return MarkdownTable(head, tuple(rows))


def _scale_picture(found: BenchmarkResult) -> str:
    sizes = [key for key in found if key.isdigit()]
    return bar_chart(
        "Processor time of a poll", {f"{int(size):,} nodes": found[size]["warm"]["cpu_us"] for size in sizes}, "us"
    )


def _held(found: BenchmarkResult) -> MarkdownTable:
    rows = [
        (kind, *(f"{found[kind][how][f'sent_{key}_ms']:g}" for how in ("single", "burst") for key in ("p50", "p99")))
        for kind in found
        if isinstance(found[kind], dict)
    ]
    return MarkdownTable(("store", "one change: p50, ms", "p99, ms", "all at once: p50, ms", "p99, ms"), tuple(rows))


def _writes(found: BenchmarkResult) -> MarkdownTable:
    forms = {"ours": ",.0f", "p99_ms": ".0f", "cpu_ms": ".2f", "bare": ",.0f", "ratio": ".2f"}
    rows = [
        (store, *(format(one[key], form) for key, form in forms.items())) for store, one in found["median"].items()
    ]
    head = ("store, medians", "PUTs a second", "p99, ms", "processor time of one, ms", "rows a second, bare", "ratio")
    return MarkdownTable(head, tuple(rows))


def _agent(found: BenchmarkResult) -> MarkdownTable:
    peace, hurried = found["in_peace"], found["hurried"]
    return MarkdownTable(
        ("what", "measured"),
        (
            ("memory in peace", f"{peace['rss_mib']:g} MiB"),
            ("processor in peace", f"{peace['cpu_percent']:g} % of a core"),
            (
                f"memory over {hurried['polls']:,} polls",
                " ".join(f"{each:g}" for each in hurried["rss_mib"]) + " MiB",
            ),
            ("processor time of a poll", f"{hurried['cpu_ms_per_poll']:g} ms"),
        ),
    )


def _agent_picture(found: BenchmarkResult) -> str:
    return line_chart("The agent's memory over its polls", found["hurried"]["rss_mib"], "MiB")


def _dashboard(found: BenchmarkResult) -> MarkdownTable:
    rows = [
        (f"{int(size):,}", view, f"{one['p50_ms']:g}", f"{one['p95_ms']:g}")
        for size in found
        if size.isdigit()
        for view, one in {**found[size]["ways"], "every way": found[size]["every way"]}.items()
    ]
    return MarkdownTable(("nodes", "how it is asked for", "p50, ms", "p95, ms"), tuple(rows))


def _extension(found: BenchmarkResult) -> MarkdownTable:
    rows = (
        ("az, below `az aks`", f"{found['start']:g} s"),
        (f"list of {found['nodes']:,} nodes", f"{found['list']:g} s"),
        ("what the list adds", f"{found['added']:g} s"),
        ("the same in processor time", f"{found['added_cpu']:g} s"),
    )
    return MarkdownTable(("what", "median"), rows)


BENCHMARKS = (
    Benchmark(
        "baseline",
        "The baseline",
        "How fast a machine can become a node at all: programs from a local mirror, a bare kubelet, nothing of ours.",
        ("--rounds", "5"),
        ("--rounds", "1"),
        _baseline,
        _baseline_picture,
    ),
    Benchmark(
        "join",
        "A join through the agent, beside the baseline",
        "Fresh machines join through the agent and by hand, in turn.",
        ("--rounds", "5"),
        ("--rounds", "1"),
        _join,
        _join_picture,
        ("under 15 s, and within 1.5 times of the baseline",),
    ),
    Benchmark(
        "upgrade",
        "What an upgrade costs those who use the node",
        "A followed node is upgraded while a pod on it is asked twenty times a second.",
        ("--rounds", "3"),
        ("--rounds", "1"),
        _upgrade,
    ),
    Benchmark(
        "rp_polls",
        "The provider's polls beside a real API server",
        "Polls that find nothing new, and GETs of a small object from kube-apiserver, in turn, over TLS.",
        ("--rounds", "5"),
        ("--rounds", "1", "--seconds", "1"),
        _polls,
        targets=("at least 8 times a GET of kube-apiserver, a processor second",),
    ),
    Benchmark(
        "rp_scale",
        "From a hundred nodes to a hundred thousand",
        "Every node polls as itself; with the most nodes, 3,333 polls a second are offered, whatever happens.",
        ("--rounds", "3"),
        ("--rounds", "1", "--sizes", "100", "1000", "--seconds", "3"),
        _scale,
        _scale_picture,
        ("100,000 nodes on 2 cores with p99 under 50 ms",),
    ),
    Benchmark(
        "rp_held",
        "Held polls",
        "From when a change was sent to when the poll of that node was answered.",
        ("--polls", "5000"),
        ("--polls", "200", "--singles", "20"),
        _held,
        targets=("p99 under 1 s with 5,000 held polls",),
    ),
    Benchmark(
        "rp_writes",
        "Durable writes",
        "PUTs to the service, and rows by the bare driver, in turn; a write is on the disk when it is answered.",
        ("--rounds", "3"),
        ("--rounds", "1", "--seconds", "1"),
        _writes,
    ),
    Benchmark(
        "agent",
        "The agent that stays",
        "A followed node left in peace, and its follower in a hurry.",
        ("--seconds", "60", "--polls", "10000"),
        ("--seconds", "10", "--polls", "100"),
        _agent,
        _agent_picture,
        ("under 45 MiB, under 0.1 % of a core",),
    ),
    Benchmark(
        "dashboard",
        "The dashboard",
        "The fleet's page asked for in ten ways, by one browser over TLS.",
        ("--rounds", "20"),
        ("--rounds", "2", "--sizes", "100"),
        _dashboard,
        targets=("p95 under 50 ms with 100,000 nodes, under 150 KiB",),
    ),
    Benchmark(
        "az_extension",
        "az aks flex-node list",
        "A list of a thousand nodes, and az's own start.",
        (),
        ("--rounds", "2"),
        _extension,
        targets=("adds under 0.3 s to az's own start",),
    ),
)


PAGE_HEAD = """# Proof

Made by `{command}` on one machine; nothing here is written by hand. What the figures mean, how they were got to,
and what was tried in between is on the page of [benchmarks](benchmarks.md).

{machine}
"""


def write_pages(folder: Path, found: dict[str, Any]) -> None:
    """`proof.md` in that folder, and its pictures beside it."""
    pictures = folder / "images" / "proof"
    pictures.mkdir(parents=True, exist_ok=True)
    machine = " · ".join(f"{name} {value}" for name, value in found["machine"].items())
    sections = [PAGE_HEAD.format(command=found["command"], machine=machine)]
    there = [part for part in BENCHMARKS if part.name in found["parts"]]
    sections += [_section(part, found["parts"][part.name], pictures) for part in there]
    (folder / "proof.md").write_text("\n".join(sections))


def _section(part: Benchmark, result: dict[str, Any], pictures: Path) -> str:
    measured = f"`{result['command']}`, {result['seconds']:.0f} s, commit {result['commit']}, {result['day']}."
    lines = [f"## {part.title}", "", f"{part.tells} {measured}"]
    lines += [f"Target: {each}." for each in part.targets]
    lines += ["", part.table(result["found"]).markdown(), ""]
    if part.picture:
        (pictures / f"{part.name}.svg").write_text(part.picture(result["found"]))
        lines += [f"![{part.title}](images/proof/{part.name}.svg)", ""]
    return "\n".join(lines)
