"""Dumps of Slurm as they come: what the site did not track, typed by hand, exported twice or lost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from tests.ingest.blind_fleets.slurm import Row, Style, fleet_of, nodes_text, sacct_text, slurm_parts
from tests.ingest.blind_fleets.truth import Fault, Fleet


def held(rows: list[Row], *kinds: str) -> list[Row]:
    """Rows that held GPUs on nodes of these kinds."""
    return [r for r in rows if r.start_s is not None and (not kinds or r.kind in kinds)]


def counts(rows: list[Row], *others: int) -> frozenset[int]:
    """Counts that a warning may state: rows, jobs, with and without those that never began."""
    held_rows = held(rows)
    found = {len(rows), len(held_rows), len({(r.cluster, r.raw) for r in rows})}
    found |= {len({(r.cluster, r.raw) for r in held_rows}), *others}
    return frozenset(found - {0})


@st.composite
def untyped_on_profiles(draw: st.DrawFn) -> Fleet:
    """Accounting tracks gres/gpu alone on nodes that have whole boards and instances."""
    nodes, rows, style = draw(slurm_parts(("mixed", "mig", "two_types"), Style(untyped=True)))
    concerned = [r for r in rows if any(k.startswith("gres/gpu:") for k in r.requested)]
    assume(held(concerned))
    fleet = fleet_of(nodes, rows, style)
    words = ("gres/gpu:", "AccountingStorageTRES", "type", "profile", *(n.name for n in nodes))
    # A node with one kind of instance decides its jobs; those of the others are left out.
    on_each = [sum(n.name in r.nodes for r in held(concerned)) for n in nodes]
    fleet.fault = Fault("untyped", words, counts(concerned, len(nodes), *mig_counts(rows), *on_each))
    return fleet


def mig_counts(rows: list[Row]) -> list[int]:
    """Numbers of rows by kind of node."""
    return [
        len(held(rows, *kinds))
        for kinds in (("mixed",), ("mig",), ("two_types",), ("mixed", "mig"), ("mixed", "two_types"))
    ]


@st.composite
def shares_not_tracked(draw: st.DrawFn) -> Fleet:
    """AccountingStorageTRES has gres/gpu but not gres/shard or gres/mps."""
    nodes, rows, style = draw(slurm_parts(("shard", "mps", "typed")))
    lost = [r for r in rows if any(k in ("gres/shard", "gres/mps") for k in r.requested)]
    assume(held(lost) and len(held(lost)) < len(held(rows)))
    for row in lost:
        row.tres, row.requested = {"fs/disk": 0}, {"fs/disk": 0}  # nothing of the share is left
    text = sacct_text(rows, style)
    fleet = fleet_of(nodes, rows, style)
    fleet.files["sacct.txt"] = text
    shared = {n.name for n in nodes if n.kind in ("shard", "mps")}
    fleet.fault = Fault("untracked", ("shard", "mps", "number of GPUs not known"), counts(lost, len(shared)))
    return fleet


@st.composite
def unknown_words(draw: st.DrawFn) -> Fleet:
    """The site calls its boards or instances by words of its own."""
    nodes, rows, style = draw(slurm_parts(("typed",)))
    word = draw(st.sampled_from(("small", "slice", "gpu20", "half", "1g", "mig", "qx7", "a100_tiny", "h100_2x")))
    tres = nodes[0].pools[0].tres
    old = tres.removeprefix("gres/gpu:")
    parts = draw(st.sampled_from((1, 2, 7)))  # parts of a board that the word means
    concerned = [r for r in rows if tres in r.requested]
    assume(held(concerned))
    for row in concerned:
        row.hours /= parts
        row.tres = {k.replace(tres, f"gres/gpu:{word}"): v for k, v in row.tres.items()}
        row.requested = {k.replace(tres, f"gres/gpu:{word}"): v for k, v in row.requested.items()}
    for node in nodes:
        if node.pools[0].tres == tres:
            node.gres = node.gres.replace(f"gpu:{old}:", f"gpu:{word}:")
            node.gpus = -(-node.gpus // parts)
    fleet = fleet_of(nodes, rows, style)
    here = [n for n in nodes if n.pools[0].tres == tres]
    fleet.fault = Fault(
        "unknown word", (word,), counts(concerned, len(here), sum(len(n.pools[0].members) for n in here))
    )
    return fleet


@st.composite
def no_node_list(draw: st.DrawFn) -> Fleet:
    """Accounting alone: shares of a GPU and boards of a node are not known from it."""
    nodes, rows, style = draw(slurm_parts())
    assume(held(rows))
    fleet = fleet_of(nodes, rows, style)
    del fleet.files["nodes.txt"]
    shared = [r for r in rows if any(k in ("gres/shard", "gres/mps") for k in r.requested)]
    fleet.installed_gpus = None  # nobody can know it
    fleet.fault = Fault("no node list", ("shard", "mps", "node"), counts(shared)) if held(shared) else None
    return fleet


@st.composite
def nodes_gone(draw: st.DrawFn) -> Fleet:
    """All nodes of some types are no more in the list."""
    nodes, rows, style = draw(slurm_parts())
    gone = draw(st.sampled_from(nodes))
    types = {p.tres for p in gone.pools}
    rest = [n for n in nodes if not types & {p.tres for p in n.pools}]
    lost = {n.name for n in nodes} - {n.name for n in rest}
    concerned = [r for r in held(rows) if lost & set(r.nodes)]
    assume(concerned and rest)
    fleet = fleet_of(nodes, rows, style)
    fleet.files["nodes.txt"] = nodes_text(rest)
    fleet.installed_gpus = sum(n.gpus for n in rest)
    words = (*lost, "shard", "mps", "node list", "inventory", *(p.gres for p in gone.pools))
    fleet.fault = Fault(
        "node gone",
        words,
        counts(concerned, 1, len([r for r in concerned if not any(k.startswith("gres/gpu") for k in r.tres)])),
    )
    return fleet


@st.composite
def impossible_profiles(draw: st.DrawFn) -> Fleet:
    """A type names a MIG profile that the board cannot have."""
    nodes, rows, style = draw(slurm_parts(("typed",)))
    word = draw(
        st.sampled_from(("v100_3g.20gb", "h100_1g.5gb", "a100_5g.30gb", "l40s_1g.6gb", "a30_3g.20gb", "a100_3g.10gb"))
    )
    tres = nodes[0].pools[0].tres
    old = tres.removeprefix("gres/gpu:")
    concerned = [r for r in rows if tres in r.requested]
    assume(held(concerned))
    for row in concerned:
        row.tres = {k.replace(tres, f"gres/gpu:{word}"): v for k, v in row.tres.items()}
        row.requested = {k.replace(tres, f"gres/gpu:{word}"): v for k, v in row.requested.items()}
    here = [n for n in nodes if n.pools[0].tres == tres]
    for node in here:
        node.gres = node.gres.replace(f"gpu:{old}:", f"gpu:{word}:")
    fleet = fleet_of(nodes, rows, style)
    fleet.gpu_hours, fleet.installed_gpus = Fraction(-1), -1  # nobody can know them
    fleet.fault = Fault("impossible", (word,), counts(concerned, len(here), sum(len(n.pools[0].members) for n in here)))
    return fleet


@st.composite
def exported_twice(draw: st.DrawFn) -> Fleet:
    """Two exports of overlapping months in one file: a job that ran in the first has ended in the second."""
    nodes, rows, style = draw(slurm_parts())
    ended = [r for r in held(rows) if r.end_s is not None]
    assume(ended)
    fleet = fleet_of(nodes, rows, style)
    again = sacct_text(rows, style)
    header = draw(st.booleans())
    whole = again if header else again.split("\n", 1)[1]
    fleet.files["sacct.txt"] += whole
    fleet.fault = Fault("twice", ("twice", "duplicate", "again", "same", "header"), counts(rows, 1, len(rows)))
    return fleet


@st.composite
def ran_then_ended(draw: st.DrawFn) -> Fleet:
    """An earlier export shows a job as running, a later one, in the same file, as ended."""
    nodes, rows, style = draw(slurm_parts(style=Style(unix=True)))
    ended = [
        r for r in held(rows) if r.end_s is not None and r.end_s - (r.start_s or 0) > 10 and r.state == "COMPLETED"
    ]
    assume(ended)
    row = draw(st.sampled_from(ended))
    fleet = fleet_of(nodes, rows, style)
    early = Row(
        row.job,
        row.raw,
        row.cluster,
        "RUNNING",
        row.submit_s,
        row.start_s,
        None,
        row.nodes,
        row.tres,
        Fraction(0),
        row.kind,
        row.requested,
    )
    line = sacct_text([early], style).split("\n")[1].split("|")
    columns = fleet.files["sacct.txt"].split("\n")[0].split("|")
    line[columns.index("ElapsedRaw")] = "5"
    head, rest = fleet.files["sacct.txt"].split("\n", 1)
    fleet.files["sacct.txt"] = "\n".join([head, "|".join(line), rest])
    fleet.fault = Fault("ran then ended", ("twice", "duplicate", "again", "same", row.raw), frozenset({1, 2}))
    return fleet


@st.composite
def requested_only(draw: st.DrawFn) -> Fleet:
    """The export lacks AllocTRES."""
    style = Style(requested_only=True)
    nodes, rows, style = draw(slurm_parts(("typed", "untyped", "mig", "shard"), style))
    assume(held(rows))
    fleet = fleet_of(nodes, rows, style)
    fleet.fault = Fault("no AllocTRES", ("AllocTRES", "ReqTRES"), counts(rows))
    return fleet


@st.composite
def mixed_case_states(draw: st.DrawFn) -> Fleet:
    """States of requeues and limits that are rare but documented in sacct(1)."""
    nodes, rows, style = draw(slurm_parts())
    ended = [r for r in held(rows) if r.end_s is not None]
    assume(ended)
    state = draw(
        st.sampled_from(
            ("DEADLINE", "BOOT_FAIL", "REVOKED", "COMPLETING", "SUSPENDED", "RESIZING", "LAUNCH_FAILED", "CANCELLED+")
        )
    )
    for row in ended[:2]:
        row.state = state
    fleet = fleet_of(nodes, rows, style)
    fleet.fault = Fault("state", (state, "State"), counts(ended[:2], 1))
    return fleet


FAULTS = (
    untyped_on_profiles, shares_not_tracked, unknown_words, no_node_list, nodes_gone, impossible_profiles,
    exported_twice, ran_then_ended, requested_only, mixed_case_states,
)  # fmt: skip


@st.composite
def faulty_slurm_fleets(draw: st.DrawFn) -> Fleet:
    """A dump with one fault."""
    return draw(FAULTS[draw(st.integers(0, len(FAULTS) - 1))]())
