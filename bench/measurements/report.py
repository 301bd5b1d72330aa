"""The benchmarks of `make bench`: their commands and tables, and the page written from their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    BenchmarkResult = dict[str, Any]


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
    name: str
    title: str
    tells: str  # description of the measurement
    options: tuple[str, ...]  # arguments after `python -m bench.NAME`
    quick: tuple[str, ...]  # arguments of `--quick`
    table: Callable[[BenchmarkResult], MarkdownTable]
    targets: tuple[str, ...] = field(default=())

    def command(self, *, quick: bool = False) -> str:
        return " ".join(("python -m", f"bench.{self.name}", *(self.quick if quick else self.options)))


def median_and_range(found: BenchmarkResult, unit: str = "s") -> tuple[str, str]:
    least, most = found.get("least", found.get("min")), found.get("most", found.get("max"))
    return f"{found['median']:g} {unit}", f"{least:g} to {most:g}"


BASELINE_PHASES = {"node": "Node Ready", "pod": "pod running", "to_ready": "clean host to Ready"}


def _baseline(found: BenchmarkResult) -> MarkdownTable:
    rows = ((BASELINE_PHASES.get(name, name), *median_and_range(one)) for name, one in found["seconds"].items())
    return MarkdownTable(("phase", "median", "spread"), tuple(rows))


PHASE = "phase: "
VISIBLE = 0.03  # seconds
JOINED = {
    "join": "join with the agent, until Node Ready",
    "join_returns": "join with the agent, until the command returns",
    "baseline": "baseline join",
    "again": "bootstrap again",
    "verify": "verify",
    "reset": "unbootstrap",
}


def _join(found: BenchmarkResult) -> MarkdownTable:
    times = [(word, *median_and_range(found["spread"][key])) for key, word in JOINED.items()]
    ratio = ("agent divided by baseline", *median_and_range(found["spread"]["ratio"], "times"))
    phases = [
        (key, *median_and_range(one))
        for key, one in found["spread"].items()
        if key.startswith(PHASE) and one["median"] >= VISIBLE
    ]
    return MarkdownTable(("what", "median", "spread"), (*times, ratio, *phases))


def _upgrade(found: BenchmarkResult) -> MarkdownTable:
    rows = []
    for step, one in found["seconds"].items():
        rows.append(
            (step, *(" ".join((value, f"({spread})")) for value, spread in map(median_and_range, _steps(one))))
        )
    return MarkdownTable(
        ("upgrade of", "applied and verified", "longest gap between a pod's responses", "node not Ready"), tuple(rows)
    )


def _steps(one: BenchmarkResult) -> tuple[BenchmarkResult, ...]:
    return one["applied"], one["gap"], one["not_ready"]


POOL_FIGURES = {
    "join": ("join, until Node Ready", "s"),
    "upgrade": ("upgrade, until Ready and verified", "s"),
    "rss_mib": ("memory of the daemon", "MiB"),
}


def _aks_pool(found: BenchmarkResult) -> MarkdownTable:
    pool, provider = found["median"]["pool"], found["median"]["provider"]
    rows = []
    for key, (what, unit) in POOL_FIGURES.items():
        median, spread = median_and_range(found["ratio"][key], "times")
        rows.append((what, f"{pool[key]:g} {unit}", f"{provider[key]:g} {unit}", f"{median} ({spread})"))
    idle = {side: counts["arm"] for side, counts in found["requests_a_minute"].items()}
    rows.append(("requests to Azure per minute, idle", f"{idle['pool']:g}", f"{idle['provider']:g}", ""))
    return MarkdownTable(("median", "node of a pool", "node of the provider", "ratio"), tuple(rows))


REQUESTS = {
    "ours": "a poll of the provider",
    "api_server": "a GET of kube-apiserver and etcd",
    "from_cache": "the same GET from its cache",
}


def _polls(found: BenchmarkResult) -> MarkdownTable:
    medians = found["median"]
    kinds = (("", ",.0f"), ("_a_second", ",.0f"), ("_p99_ms", ".1f"))
    rows = [
        (what, *(format(medians[f"{name}{key}"], form) for key, form in kinds)) for name, what in REQUESTS.items()
    ]
    ratios = " ".join(f"{each:g}" for each in found["ratios"])
    rows.append(
        ("provider divided by kube-apiserver", f"{medians['ratio']:g} times", f"round by round: {ratios}", "")
    )
    return MarkdownTable(("median of the rounds", "per CPU second", "per second", "p99, ms"), tuple(rows))


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
        (
            "largest divided by smallest",
            f"{found['flat']['cpu_us']:g} times",
            f"{found['flat']['p99_ms']:g} times",
            "",
            "",
        )
    )
    steady = found["steady"]
    rows.append(
        (f"{steady['a_second']:,.0f} polls per second", f"{steady['cpu_us']:g}", f"{steady['p99_ms']:g}", "", "")
    )
    head = ("nodes", "CPU time of a poll, us", "p99, ms", "after a start: us", "after a start: p99, ms")
    return MarkdownTable(head, tuple(rows))


def _held(found: BenchmarkResult) -> MarkdownTable:
    rows = [
        (kind, *(f"{found[kind][how][f'sent_{key}_ms']:g}" for how in ("single", "burst") for key in ("p50", "p99")))
        for kind in found
        if isinstance(found[kind], dict)
    ]
    return MarkdownTable(("store", "one change: p50, ms", "p99, ms", "all nodes: p50, ms", "p99, ms"), tuple(rows))


def _writes(found: BenchmarkResult) -> MarkdownTable:
    forms = {"ours": ",.0f", "p99_ms": ".0f", "cpu_ms": ".2f", "bare": ",.0f", "ratio": ".2f"}
    rows = [
        (store, *(format(one[key], form) for key, form in forms.items())) for store, one in found["median"].items()
    ]
    head = (
        "store, medians",
        "PUTs per second",
        "p99, ms",
        "CPU time of a PUT, ms",
        "rows per second with the driver",
        "ratio",
    )
    return MarkdownTable(head, tuple(rows))


def _agent(found: BenchmarkResult) -> MarkdownTable:
    peace, hurried = found["in_peace"], found["hurried"]
    return MarkdownTable(
        ("what", "measured"),
        (
            ("memory when idle", f"{peace['rss_mib']:g} MiB"),
            ("CPU when idle", f"{peace['cpu_percent']:g} % of a core"),
            (
                f"memory over {hurried['polls']:,} polls",
                " ".join(f"{each:g}" for each in hurried["rss_mib"]) + " MiB",
            ),
            ("CPU time of a poll", f"{hurried['cpu_ms_per_poll']:g} ms"),
        ),
    )


RECOVERY_TARGETS = {  # seconds
    "certificate lost": 30,
    "certificate damaged": 30,
    "Node deleted": 15,
    "runtime killed": 30,
    "runtime without CRI": 30,
    "job killed": 5,
    "power cut in an upgrade": 15,
}


def _recovery(found: BenchmarkResult) -> MarkdownTable:
    rows = []
    for name, one in found["faults"].items():
        fault = f"{name} for {found['away']:g} s" if name.endswith(" away") else name
        target = f"under {RECOVERY_TARGETS[name]} s" if name in RECOVERY_TARGETS else ""
        figures = (f"{one['median']:g} s", f"{one['most']:g} s", f"{one['cpu']:g} %", f"{one['children']:g} %")
        rows.append((fault, str(one["rounds"]), *figures, target))
    head = ("fault", "rounds", "median", "worst", "CPU of the daemon", "and of its children", "target")
    return MarkdownTable(head, tuple(rows))


def _dashboard(found: BenchmarkResult) -> MarkdownTable:
    rows = []
    for size in (key for key in found if key.isdigit()):
        views = found[size]["ways"]
        slowest = max(views, key=lambda view: views[view]["p95_ms"])
        shown = {"all views": found[size]["every way"], f"the slowest: {slowest}": views[slowest]}
        rows += [(f"{int(size):,}", view, f"{one['p50_ms']:g}", f"{one['p95_ms']:g}") for view, one in shown.items()]
    return MarkdownTable(("nodes", "view", "p50, ms", "p95, ms"), tuple(rows))


ADDED_BY_LIST_TARGET = 0.3  # seconds


def _extension(found: BenchmarkResult) -> MarkdownTable:
    missed = "" if found["added"] < ADDED_BY_LIST_TARGET else ", not met"
    rows = (
        ("az, below `az aks`", f"{found['start']:g} s", ""),
        (f"list of {found['nodes']:,} nodes", f"{found['list']:g} s", ""),
        ("added by the list", f"{found['added']:g} s", f"under {ADDED_BY_LIST_TARGET} s{missed}"),
        ("added CPU time", f"{found['added_cpu']:g} s", ""),
    )
    return MarkdownTable(("what", "median", "target"), rows)


BENCHMARKS = (
    Benchmark(
        "baseline",
        "The baseline",
        "A minimal script joins a fresh machine: it downloads everything at once from the lab's mirror (309 MB), "
        "verifies nothing, and writes the fewest files. It is a limit, not a join method.",
        ("--rounds", "5"),
        ("--rounds", "1"),
        _baseline,
    ),
    Benchmark(
        "join",
        "A join with the agent, compared with the baseline",
        "New machines join alternately with the agent and with the baseline script. The agent also checks the "
        "machine, verifies every file and records its changes. It can be faster: it unpacks while it downloads.",
        ("--rounds", "5"),
        ("--rounds", "1"),
        _join,
        ("under 15 s, and within 1.5 times of the baseline",),
    ),
    Benchmark(
        "upgrade",
        "Interruption by an upgrade",
        "A managed node is upgraded during twenty requests per second to a pod on it.",
        ("--rounds", "3"),
        ("--rounds", "1"),
        _upgrade,
    ),
    Benchmark(
        "recovery",
        "Recovery from faults",
        "A managed node is damaged. The time ends when it is Ready and verified; for a killed job, when it runs. "
        "For a full disk and an unreachable provider or API server, it starts when the cause is gone. CPU is that "
        "of the daemon, and of children such as the sign-in to Entra ID, in the busiest minute. Up to 10 s are the "
        "wait for the next lease of the kubelet.",
        ("--rounds", "5", "--away", "600", "--away-nodes", "5"),
        ("--rounds", "1", "--away", "20", "--away-nodes", "2"),
        _recovery,
        ("the daemon itself, without children, uses at most 1 % of a core in any minute of any fault",),
    ),
    Benchmark(
        "aks_pool",
        "Nodes of an AKS pool, compared with nodes of the provider",
        "Machines join and are upgraded alternately through a flex node pool of the lab's AKS and with the provider.",
        ("--rounds", "4", "--seconds", "120"),
        ("--rounds", "1", "--seconds", "10"),
        _aks_pool,
        targets=(
            "join and upgrade within 1.2 times of a node of the provider",
            "at most 2 requests to Azure per minute, and the same memory",
        ),
    ),
    Benchmark(
        "rp_polls",
        "Polls of the provider, compared with a real API server",
        "Polls without a change alternate with GETs of a small object from kube-apiserver, over TLS.",
        ("--rounds", "5"),
        ("--rounds", "1", "--seconds", "1"),
        _polls,
        targets=("at least 8 times the GETs of kube-apiserver per CPU second",),
    ),
    Benchmark(
        "rp_scale",
        "From a hundred nodes to a hundred thousand",
        "Every node polls with its own token. After a start, the provider verifies every token and reads every node. "
        "100,000 nodes at the default interval make 3,333 polls per second.",
        ("--rounds", "3"),
        ("--rounds", "1", "--sizes", "100", "1000", "--seconds", "3"),
        _scale,
        ("100,000 nodes on 2 cores with p99 under 50 ms",),
    ),
    Benchmark(
        "rp_held",
        "Long polls",
        "The time from the request of a change to the response of the node's long poll.",
        ("--polls", "5000"),
        ("--polls", "200", "--singles", "20"),
        _held,
        targets=("p99 under 1 s with 5,000 long polls",),
    ),
    Benchmark(
        "rp_writes",
        "Durable writes",
        "PUTs to the service alternate with rows written with the driver. A write is durable before its response.",
        ("--rounds", "3"),
        ("--rounds", "1", "--seconds", "1"),
        _writes,
    ),
    Benchmark(
        "agent",
        "The daemon",
        "The daemon of a managed node when idle, and with polls at a high rate.",
        ("--seconds", "60", "--polls", "10000"),
        ("--seconds", "10", "--polls", "100"),
        _agent,
        ("under 45 MiB, under 0.1 % of a core",),
    ),
    Benchmark(
        "dashboard",
        "The dashboard",
        "The fleet page in ten views (sorted, filtered, searched, last page), requested by one browser over TLS.",
        ("--rounds", "20"),
        ("--rounds", "2", "--sizes", "100"),
        _dashboard,
        targets=("p95 of all views under 50 ms with 100,000 nodes, under 150 KiB",),
    ),
    Benchmark(
        "az_extension",
        "az aks flex-node list",
        "A list of a thousand nodes, compared with the start of az.",
        (),
        ("--rounds", "2"),
        _extension,
    ),
)


BEGIN, END = "<!-- figures of make bench -->\n", "<!-- end of the figures of make bench -->\n"


def page_with_figures(page: str, figures: dict[str, Any]) -> str:
    """Returns the page of measurements with the figures of `make bench` replaced by these."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    machine = " · ".join(f"{name} {value}" for name, value in figures["machine"].items())
    sections = [
        f"`{figures['command']}`: {machine}\n",
        *(_section(part, figures["parts"][part.name]) for part in BENCHMARKS if part.name in figures["parts"]),
    ]
    return "\n".join([f"{head}{BEGIN}", *sections, f"{END}{tail}"])


def _section(part: Benchmark, result: dict[str, Any]) -> str:
    measured = f"`{result['command']}`, commit {result['commit']}, {result['day']}."
    target = f" Target: {'; '.join(part.targets)}." if part.targets else ""
    table = part.table(result["found"]).markdown()
    return f"### {part.title}\n\n{part.tells}{target} {measured}\n\n{table}\n"
