"""Clusters of Slurm as ``sacct`` and ``scontrol show node`` print them, with the GPU-hours that they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction

from hypothesis import strategies as st

from tests.ingest.blind_fleets.truth import Fleet, Units

BEGIN_S = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
SNAPSHOT_S = 3 * 86_400
# A site spells all types in one way: by hand, or as slurmd derives them from NVML.
SPELLINGS = {
    "short": ("a100", "h100", "v100", "l40s", "rtx_a6000", "mi300x"),
    "nvml": (
        "nvidia_a100-sxm4-40gb",
        "nvidia_h100_80gb_hbm3",
        "tesla_v100-sxm2-32gb",
        "nvidia_l40s",
        "nvidia_rtx_a6000",
        "mi300x",
    ),
}
A100_40 = {"short": "a100", "nvml": "nvidia_a100-sxm4-40gb"}
A100_80 = {"short": "a100", "nvml": "nvidia_a100-sxm4-80gb"}
H100 = {"short": "h100", "nvml": "nvidia_h100_80gb_hbm3"}
A30 = {"short": "a30", "nvml": "nvidia_a30"}
# Layouts that leave no room for another number of boards: (type words, instances of one board).
LAYOUTS = (
    (A100_40, {"3g.20gb": 2}),
    (A100_40, {"1g.5gb": 7}),
    (A100_40, {"4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}),
    (A100_40, {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}),
    (A100_40, {"7g.40gb": 1}),
    (A100_80, {"3g.40gb": 2}),
    (A100_80, {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}),
    (H100, {"1g.10gb": 7}),
    (H100, {"3g.40gb": 2}),
    (H100, {"2g.20gb": 3, "1g.10gb": 1}),
    (H100, {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}),
    (H100, {"7g.80gb": 1}),
    (A30, {"1g.6gb": 4}),
    (A30, {"2g.12gb": 2}),
)
ENDED = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED by 1001")


@dataclass
class Pool:
    """Units of one node that are asked for by one TRES: its words in ``Gres=`` and ``AllocTRES``."""

    gres: str
    tres: str
    share: Fraction
    units: Units
    members: list[list[int]]  # what one request of 1 takes: indices of units


@dataclass
class Node:
    """A node, its pools, and the GPUs of its boards."""

    name: str
    cluster: str
    kind: str
    gpus: int
    pools: list[Pool]
    gres: str


@dataclass
class Row:
    """One row of accounting that is an allocation, in seconds from the beginning."""

    job: str
    raw: str
    cluster: str
    state: str
    submit_s: int
    start_s: int | None
    end_s: int | None
    nodes: list[str]
    tres: dict[str, int]
    hours: Fraction
    kind: str
    requested: dict[str, int] = field(default_factory=dict)


def simple_pool(gres: str, tres: str, count: int, share: Fraction = Fraction(1)) -> Pool:
    """Pool of units that are asked for one by one."""
    return Pool(gres, tres, share, Units([share] * count), [[i] for i in range(count)])


@st.composite
def slurm_nodes(draw: st.DrawFn, cluster: str, first: int, kinds: tuple[str, ...], spelling: str) -> list[Node]:
    """One to three nodes of one kind."""
    kind = draw(st.sampled_from(kinds))
    sockets = draw(st.sampled_from(("", "(S:0-1)")))
    boards = draw(st.sampled_from((1, 2, 4, 8)))
    word = draw(st.sampled_from(SPELLINGS[spelling]))
    words, layout = draw(st.sampled_from(LAYOUTS))
    mig_word = words[spelling]
    split = draw(st.sampled_from((4, 8, 10, 32))) if kind == "shard" else 100
    typed_share = draw(st.booleans())
    second = draw(st.sampled_from([other for other in SPELLINGS[spelling] if other != word]))
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        gpus, pools, gres = boards, [], []
        if kind in ("mig", "mixed"):
            if kind == "mixed":
                pools.append(simple_pool(mig_word, f"gres/gpu:{mig_word}", boards))
                gres.append(f"gpu:{mig_word}:{boards}{sockets}")
                gpus += boards
            for profile, each in layout.items():
                share = Fraction(int(profile[0]), 4 if mig_word.endswith("a30") else 7)
                name = f"{mig_word}_{profile}"
                pools.append(simple_pool(name, f"gres/gpu:{name}", each * boards, share))
                gres.append(f"gpu:{name}:{each * boards}{sockets}")
        elif kind in ("shard", "mps"):
            units = Units([Fraction(1, split)] * (boards * split))
            per_board = [list(range(b * split, (b + 1) * split)) for b in range(boards)]
            type_word = f":{word}" if typed_share else ""
            pools.append(Pool("gpu", f"gres/gpu:{word}", Fraction(1), units, per_board))
            pools.append(Pool(kind, f"gres/{kind}", Fraction(1, split), units, per_board))
            gres += [f"gpu:{word}:{boards}{sockets}", f"{kind}{type_word}:{boards * split}{sockets}"]
        elif kind == "two_types":
            for each in (word, second):
                pools.append(simple_pool(each, f"gres/gpu:{each}", boards))
                gres.append(f"gpu:{each}:{boards}{sockets}")
            gpus = 2 * boards
        else:
            name = "mi250x" if kind == "gcd" else word
            pools.append(simple_pool(name, "gres/gpu" if kind == "untyped" else f"gres/gpu:{name}", boards))
            gres.append(f"gpu:{boards}{sockets}" if kind == "untyped" else f"gpu:{name}:{boards}{sockets}")
        nodes.append(Node(f"{cluster[0]}n{first + number:02d}", cluster, kind, gpus, pools, ",".join(gres)))
    return nodes


@st.composite
def allocation(
    draw: st.DrawFn, nodes: list[Node], earliest_s: int
) -> tuple[list[str], dict[str, int], int, int, Fraction, str]:
    """Nodes, TRES, start, run time, GPUs and kind of one job that fits."""
    node = draw(st.sampled_from(nodes))
    number = draw(st.integers(0, len(node.pools) - 1))
    pool = node.pools[number]
    run_s = draw(st.integers(1, 40_000))
    shared = pool.gres in ("shard", "mps")
    alike = [n for n in nodes if n.gres == node.gres and n.cluster == node.cluster]
    hosts = alike[: draw(st.integers(1, len(alike)))] if not shared and draw(st.integers(0, 3)) == 0 else [node]
    if shared:
        gpu_model = draw(st.sampled_from(pool.members))
        most = len(gpu_model)
        amount = draw(st.integers(1, most))
        # The units of a board that are free first.
        order = sorted(gpu_model, key=lambda i: pool.units.free_s[i])[:amount]
        start_s = pool.units.take(order, earliest_s, run_s)
        gpus = pool.share * amount
    else:
        amount = draw(st.integers(1, len(pool.members)))
        takes = []
        for host in hosts:
            own = host.pools[number]
            ranked = sorted(own.members, key=lambda m: max(own.units.free_s[i] for i in m))[:amount]
            takes.append((own, [i for member in ranked for i in member]))
        start_s = max([earliest_s] + [own.units.free_s[i] for own, chosen in takes for i in chosen])
        for own, chosen in takes:
            own.units.take(chosen, start_s, run_s)
        gpus = pool.share * amount * len(hosts)
    total = amount * len(hosts)
    tres = Counter({pool.tres: total})
    if pool.tres.startswith("gres/gpu:"):
        tres["gres/gpu"] = total
    return [n.name for n in hosts], dict(tres), start_s, run_s, gpus, node.kind


@st.composite
def slurm_rows(draw: st.DrawFn, nodes: list[Node], most: int = 12) -> list[Row]:
    """Jobs in the order of their numbers: plain ones, arrays, het jobs, requeues, jobs that wait or run."""
    rows: list[Row] = []
    numbers = Counter[str]()
    for _ in range(draw(st.integers(1, most))):
        cluster = draw(st.sampled_from(sorted({n.cluster for n in nodes})))
        own = [n for n in nodes if n.cluster == cluster]
        form = draw(st.sampled_from(("plain", "plain", "plain", "array", "het", "requeue", "pending", "cancelled")))
        numbers[cluster] += 1
        base = 4000 + 10 * numbers[cluster]
        submit_s = draw(st.integers(0, 100_000))
        if form in ("pending", "cancelled"):
            hosts, tres, *_ = draw(allocation([copied(n) for n in own], submit_s))
            name = f"{base}_[3-9%2]" if form == "pending" and draw(st.booleans()) else str(base)
            state = "PENDING" if form == "pending" else "CANCELLED by 1001"
            end_s = submit_s + 60 if form == "cancelled" else None
            rows.append(Row(name, str(base), cluster, state, submit_s, None, end_s, [], {}, Fraction(0), form, tres))
            continue
        parts = draw(st.integers(2, 3)) if form != "plain" else 1
        if form == "het":  # its components start together
            submit_s = max([submit_s] + [free for n in own for p in n.pools for free in p.units.free_s])
        for part in range(parts):
            hosts, tres, start_s, run_s, gpus, kind = draw(allocation(own, submit_s))
            name = {"array": f"{base}_{part}", "het": f"{base}+{part}"}.get(form, str(base))
            raw = str(base + part) if form in ("array", "het") else str(base)
            state = draw(st.sampled_from(ENDED))
            if form == "requeue" and part < parts - 1:
                state = draw(st.sampled_from(("PREEMPTED", "NODE_FAIL", "REQUEUED")))
            if start_s >= SNAPSHOT_S:
                rows.append(Row(name, raw, cluster, "PENDING", submit_s, None, None, [], {}, Fraction(0), form, tres))
                break
            end_s: int | None = start_s + run_s
            held_s = run_s
            if start_s + run_s > SNAPSHOT_S:
                state, end_s, held_s = "RUNNING", None, SNAPSHOT_S - start_s
            hours = gpus * Fraction(held_s, 3600)
            rows.append(Row(name, raw, cluster, state, submit_s, start_s, end_s, hosts, tres, hours, kind, tres))
            if form == "requeue":
                if end_s is None:
                    break
                submit_s = end_s + draw(st.integers(0, 120))
    return rows


def copied(node: Node) -> Node:
    """A node whose units can be taken without effect on the node itself."""
    pools = [Pool(p.gres, p.tres, p.share, Units(list(p.units.shares)), p.members) for p in node.pools]
    return Node(node.name, node.cluster, node.kind, node.gpus, pools, node.gres)


@dataclass
class Style:
    """How accounting is printed."""

    unix: bool = False
    steps: bool = False
    clusters: bool = False
    requested_only: bool = False
    untyped: bool = False


def instant(seconds: int | None, missing: str, style: Style) -> str:
    """A time as sacct prints it."""
    if seconds is None:
        return missing
    if style.unix:
        return str(BEGIN_S + seconds)
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def tres_text(tres: dict[str, int], nodes: int, style: Style) -> str:
    """TRES in the order of sacct."""
    if not tres:
        return ""
    kept = {k: v for k, v in tres.items() if not (style.untyped and k.startswith("gres/gpu:"))}
    parts = [f"{key}={value}" for key, value in sorted(kept.items(), reverse=True)]
    return ",".join(["billing=8", "cpu=8", *parts, "mem=60G", f"node={nodes}"])


def host_list(names: list[str]) -> str:
    """Names as sacct folds them."""
    if len(names) < 2:
        return names[0] if names else "None assigned"
    return f"{names[0][:2]}[{names[0][2:]}-{names[-1][2:]}]"


def sacct_text(rows: list[Row], style: Style) -> str:
    """The output of ``sacct --parsable2``."""
    columns = (
        "JobID|JobIDRaw|Cluster|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|ElapsedRaw|"
        "NNodes|NodeList|ReqTRES|AllocTRES"
    )
    names = [c for c in columns.split("|") if style.clusters or c != "Cluster"]
    names = [c for c in names if not (style.requested_only and c == "AllocTRES")]
    lines = ["|".join(names)]
    for row in rows:
        last_s = row.end_s if row.end_s is not None else SNAPSHOT_S
        elapsed_s = last_s - row.start_s if row.start_s is not None else 0
        count = max(1, len(row.nodes))
        values = {
            "JobID": row.job, "JobIDRaw": row.raw, "Cluster": row.cluster, "User": "u01", "Account": "optics",
            "Partition": "gpu", "QOS": "normal", "State": row.state, "Submit": instant(row.submit_s, "", style),
            "Eligible": instant(row.submit_s, "", style), "Start": instant(row.start_s, "Unknown", style),
            "End": instant(row.end_s, "Unknown", style), "ElapsedRaw": str(elapsed_s), "NNodes": str(count),
            "NodeList": host_list(row.nodes), "ReqTRES": tres_text(row.requested, count, style),
            "AllocTRES": tres_text(row.tres, count, style),
        }  # fmt: skip
        lines.append("|".join(values[c] for c in names))
        if style.steps and row.start_s is not None and row.end_s is not None:
            for step in ("batch", "extern", "0"):
                inner = dict(values, JobID=f"{row.job}.{step}", JobIDRaw=f"{row.raw}.{step}", User="", Partition="")
                inner |= {"QOS": "", "ReqTRES": "", "State": row.state.split()[0]}
                lines.append("|".join(inner[c] for c in names))
    return "\n".join(lines) + "\n"


def nodes_text(nodes: list[Node]) -> str:
    """The output of ``scontrol show node``."""
    blocks = []
    for node in nodes:
        gres = [part.split("(")[0] for part in node.gres.split(",")]
        total = sum(int(part.rsplit(":", 1)[1]) for part in gres if part.startswith("gpu:"))
        blocks.append(
            f"NodeName={node.name} Arch=x86_64 CoresPerSocket=32\n   Gres={node.gres}\n"
            f"   State=MIXED CfgTRES=cpu=64,mem=1000G,billing=64,gres/gpu={total}\n"
        )
    return "\n".join(blocks)


KINDS = ("typed", "untyped", "two_types", "mig", "mixed", "shard", "mps", "gcd")


@st.composite
def slurm_parts(
    draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, style: Style | None = None
) -> tuple[list[Node], list[Row], Style]:
    """Nodes, rows and style of a cluster, or of two in one dump."""
    style = style or Style(unix=draw(st.booleans()), steps=draw(st.booleans()), clusters=draw(st.booleans()))
    clusters = ("rigel", "vega")[: draw(st.integers(1, 2)) if style.clusters else 1]
    spelling = draw(st.sampled_from(sorted(SPELLINGS)))
    nodes: list[Node] = []
    for cluster in clusters:
        for block in range(draw(st.integers(1, 2))):
            # Nodes of two types stand alone: see what is known to fail.
            chosen = kinds if not nodes or kinds == ("two_types",) else tuple(k for k in kinds if k != "two_types")
            if nodes and nodes[0].kind == "two_types":
                break
            nodes += draw(slurm_nodes(cluster, 1 + 10 * block, chosen, spelling))
    return nodes, draw(slurm_rows(nodes)), style


@st.composite
def slurm_fleets(draw: st.DrawFn) -> Fleet:
    """Clusters in documented forms, without a fault."""
    nodes, rows, style = draw(slurm_parts())
    return fleet_of(nodes, rows, style)


def fleet_of(nodes: list[Node], rows: list[Row], style: Style) -> Fleet:
    """Files and truth of a cluster."""
    files = {"sacct.txt": sacct_text(rows, style), "nodes.txt": nodes_text(nodes)}
    return Fleet(files, sum((r.hours for r in rows), Fraction(0)), sum(n.gpus for n in nodes))
