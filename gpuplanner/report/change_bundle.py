"""The change bundle: files that operators apply, with a page that says how."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GeometryError, GpuPlannerError, ScenarioError
from gpuplanner.core.output_places import MANIFEST, Mark
from gpuplanner.core.output_writing import replaced_directory
from gpuplanner.core.scenario import FILES, Scenario
from gpuplanner.core.schemas import WHOLE_GPU, QueueQuotas
from gpuplanner.core.stage_cache import data_folder, input_hashes
from gpuplanner.core.units import counted, wait_text
from gpuplanner.decision.comparison_record import Comparison, curve_table, played, policy_table, service_table
from gpuplanner.decision.decision_text import IDLE_ACTIONS
from gpuplanner.decision.decision_types import ROUNDING_MINUTES, Decision
from gpuplanner.decision.plan_rehearsal import drain_of
from gpuplanner.decision.policy_comparison import WAYS
from gpuplanner.decision.policy_fleets import BY_JOBS, FleetRules, TenantQuota
from gpuplanner.decision.requests import RIGHTSIZED
from gpuplanner.decision.study import Study, open_study
from gpuplanner.hardware.catalog import measure_words
from gpuplanner.hardware.gpu_models import GpuModel, any_board, as_board, whole_board
from gpuplanner.hardware.repartitioning_cost import ChangeCost, cost_of_change, minutes
from gpuplanner.ingest.large_tables import read_table
from gpuplanner.planner.layout_plan import checked_plan, states_at
from gpuplanner.report.bundle_files import (
    NAMESPACE,
    FleetPack,
    MeasureWords,
    Pack,
    PageWords,
    Step,
    add_release,
    change_index,
    filled,
    lines_of,
    timeout_s,
    to_index_text,
)
from gpuplanner.report.mig_manager_files import to_change_scripts, to_config_map, to_mig_parted
from gpuplanner.report.slurm_files import to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.usage.planned_fleet import known_board

PAGE = "README.md"
NOTHING = "Nothing has to be done."
CHANGES_FLEET = ("repartition", "rightsize", "power_down", "autoscale")
"""Measures that files perform: those that belong to no other measure."""
NOT_TODAY = "The dates follow the end of the record, not today; a change may begin on any later day."


def to_pack(
    rules: FleetRules, told: PageWords, change: ChangeCost, drain: Drain, *, gres_type: str | None = None
) -> Pack:
    """The files of what was decided, and the page that says how to use them."""
    from gpuplanner.report.kubernetes_pools import add_queues, on_demand, pools
    from gpuplanner.report.slurm_files import power_saving

    board = change.board or as_board(rules.board)
    pack = FleetPack(rules=rules, board=board, change=change, drain=drain, gres_type=gres_type)
    if not rules.named and rules.path != "autoscaler":
        pack.warnings.append("the nodes have no names: nothing is written that would have to name them")
    recipe = {"slurm": _on_slurm, "parted": _by_parted}.get(rules.path, _by_operator)
    by_jobs = any(BY_JOBS in pool.layouts for pool in rules.pools)
    if by_jobs:
        recipe = on_demand
    elif rules.path == "autoscaler" or (rules.comes_and_goes and rules.path != "slurm"):
        recipe = pools
    elif rules.comes_and_goes:
        recipe = power_saving
    try:
        if by_jobs and rules.path != "dra":
            pack.warnings.append(
                f"nothing that is shipped cuts GPUs when a job asks on path {rules.path}; take path dra"
            )
        elif rules.named or recipe is pools:
            recipe(pack)
        if recipe in (_by_operator, pools):
            add_queues(pack)
    except GeometryError as error:
        pack.warnings.append(f"left out of {rules.path}: {error}")
    pack.files[PAGE] = to_page(pack, told)
    return pack


def _by_operator(pack: FleetPack) -> None:
    """The MIG manager cuts what a label names, or a script makes the instances of one GPU; it keeps the order."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    by_gpu = rules.path == "nvml"
    if pack.board.profiles and not by_gpu:
        says = "one configuration for each way that a node is cut; mig-parted reads it"
        pack.add(to_config_map(plan, pack.board), Step.manifest(pack.place("configmap.yaml"), says))
        pack.add_script("policy.sh", "lets the MIG manager read it; keeps what was set before")
    if pack.board.profiles:
        drain = replace(pack.drain, scope="gpu") if by_gpu else pack.drain
        scripts = to_change_scripts(plan, pack.board, change=pack.change, drain=drain)
        _add_index(pack)
        emptied = "empties GPUs one by one beside those at work" if by_gpu else "empties nodes"
        for name, text in scripts.items():
            pack.add(
                text, Step.script(pack.place(name), f"{emptied}, cuts them, compares, lets them work again")
            )
    add_release(pack, rules.released, "empties the nodes of `released.txt`, which are not needed")


def _by_parted(pack: FleetPack) -> None:
    """mig-parted on each node, by ssh."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    if pack.board.profiles:
        pack.add(
            to_mig_parted(plan, pack.board),
            Step(pack.place("mig-parted.yaml"), "one configuration for each way that a node is cut"),
        )
        last = plan["slot_start"].max()
        held = states_at(checked_plan(plan, pack.board), last)  # type: ignore[arg-type]
        changed = sorted(set(plan.filter("changed")["node"]))
        if changed:
            steps = "\n".join(f"config[{node}]={held[node].config_name}" for node in changed)
            text = pack.script("change_parted.sh", STEPS=steps, NODES=" ".join(changed))
            what = "waits for the GPU work of a node to end, cuts it, compares; keeps what was there"
            _add_index(pack)
            pack.add(text, Step.script(pack.place("change.sh"), what))
    if rules.released:
        what = "nodes that are not needed: keep work away from them, then give them back or power them down"
        pack.add(lines_of(rules.released), Step(pack.place("released.txt"), what))


def _on_slurm(pack: FleetPack) -> None:
    """Lines of slurm.conf, and a script that keeps the order."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    what = "drains the nodes of `released.txt`, which are not needed"
    if not plan["changed"].any():
        # To drain nodes, neither the type of their GPUs nor the lines of the others are needed.
        add_release(pack, rules.released, what)
        return
    files = to_slurm_files(plan, pack.board, gres_type=pack.gres_type, change=pack.change, drain=pack.drain)
    scripts = [name for name in files if name.startswith("change-")]
    if pack.board.profiles:
        yaml = pack.place("mig-parted.yaml")
        changed = pack.place("changed.txt")
        pack.files[changed] = lines_of(sorted(set(plan.filter("changed")["node"])))
        copy = (
            "export PARTED=/etc/gpuplanner-mig-parted.yaml\n"
            f'for node in $(cat {changed}); do scp {yaml} "$node:$PARTED"; done'
        )
        pack.add(to_mig_parted(plan, pack.board),
                 Step(yaml, "one configuration for each way that a node is cut; goes to the nodes of `changed.txt`",
                      copy))  # fmt: skip
    # Of the lines of before and after a change those of after.
    unused = {name for name in files if name.startswith("slurm-")} - {
        f"slurm-{one[7:-3]}.conf" for one in scripts
    }
    left_out = {*scripts, *unused}
    pack.files |= {pack.place(name): text for name, text in files.items() if name not in left_out}
    says = "for every node with NVML in its Slurm; the others get what `static-gres.sh` prints there"
    pack.steps.append(Step(pack.place("gres.conf"), says))
    _add_index(pack)
    does = "drains nodes, waits, cuts them, puts their Gres into slurm.conf, compares, resumes"
    for name in scripts:
        step = Step.script(pack.place(name), does)
        undo = f"export PARTED=/etc/gpuplanner-mig-parted.yaml\n{step.undo}"
        pack.add(files[name], replace(step, undo=undo))
    add_release(pack, rules.released, what)


def _add_index(pack: FleetPack) -> None:
    index = change_index(pack.rules.layout_plan(), pack.board, change=pack.change, drain=pack.drain)
    if index.height:
        place = pack.place("changes.md")
        text = to_index_text(index, pack.board, pack.change)
        pack.add(f"{text}\n{NOT_TODAY}\n", Step(place, "what changes on which GPU, to read"))


def to_page(pack: FleetPack, told: PageWords) -> str:
    """The page that is read first."""
    rules, warnings = pack.rules, "; ".join(pack.warnings)
    where = (
        "where kubectl speaks to the cluster, as one who may label, annotate, cordon and drain nodes and patch the "
        f"ClusterPolicy; the GPU operator is expected in namespace `{NAMESPACE}`"
    )
    where = {
        "slurm": "on the controller of Slurm, as one who may change it",
        "parted": "where ssh reaches the nodes as root",
        "nvml": "where kubectl reaches the cluster, and ssh the nodes as root",
    }.get(rules.path, where)
    values = {
        "TITLE": f"These are not the files of the decision: {warnings}" if warnings else told.sentence,
        "PATH": rules.path,
        "POLICY": told.policy,
        "BOARD": rules.board,
        "BEGINS": (rules.begins or "")[:16].replace("T", " ") + " UTC",
        "WHERE": where,
        "SENTENCE": told.sentence if warnings else "As the title says; the page of the report shows why.",
        "POOLS": "\n".join(_pool_line(rules, number) for number in range(len(rules.pools))),
        "MEANS": told.means,
        "TOUCHED": "\n".join([*(f"- {line}" for line in told.touched), *_durations(pack)]),
        **page_tables(pack),
        **(_by_measure(pack, told) if told.measures else {}),
    }
    return filled("readme.md", values)


def _by_measure(pack: FleetPack, told: PageWords) -> dict[str, str]:
    """What to do, check and undo for each measure, in order."""
    other = next((one.action for one in told.measures if one.action in CHANGES_FLEET), "")
    do, check, undo = list[str](), list[str](), list[str]()
    for number, one in enumerate(told.measures, start=1):
        steps = [step for step in pack.steps if (step.action or other) == one.action]
        by, commands, checked, undone = "", [step.do for step in steps], "", ""
        if not any(commands):
            by, commands, checked, undone = _by_hand(pack, told, one)
        head = " ".join(filter(None, (f"{number}. **{one.text}.**", one.condition, by)))
        do.append(
            "\n".join([head, *(f"   - {what}" for what, _ in one.steps), "", _fence(commands)]).rstrip()
        )
        checked += _fence([step.check for step in steps])
        undone += _fence([step.undo for step in reversed(steps)])
        check += [f"Of {number}:\n\n{checked}"] if checked else []
        undo += [f"Of {number}:\n\n{undone}"] if undone else []
    rest = [] if other else [step.do for step in pack.steps if not step.action and step.do]
    do += [f"The other files set what stays as it is:\n\n{_fence(rest)}"] if rest else []
    parts = {"DO": do, "CHECK": check, "UNDO": undo[::-1]}
    return {key: "\n\n".join(texts) or NOTHING for key, texts in parts.items()}


def _by_hand(pack: FleetPack, told: PageWords, one: MeasureWords) -> tuple[str, list[str], str, str]:
    """Why no file performs a measure, the commands that do, and how it is checked and undone."""
    pack.by_hand.append(one.action)
    if one.action in CHANGES_FLEET:
        why = "; ".join(pack.warnings)
        return f"No file here performs it ({why}); `{told.command}` writes it once that is fixed.", [], "", ""
    commands = [command for _, command in one.steps if command]
    if one.action == "buy":
        return "No file performs it.", commands, "", ""
    words = measure_words(one.action, pack.rules.path)
    checked, undone = (words[name].replace("{nodes}", "NODES") for name in ("check", "undo"))
    return "No file performs it; by hand:", commands, checked, undone


def page_tables(pack: Pack) -> dict[str, str]:
    """What a page says of the files: the list of them, and the commands."""
    return {
        "FILES": "\n".join(f"| `{step.file}` | {step.what} |" for step in pack.steps)
        or "| none | no file is needed |",
        "DO": _fence([step.do for step in pack.steps]) or NOTHING,
        "CHECK": _fence([step.check for step in pack.steps]) or NOTHING,
        "UNDO": _fence([step.undo for step in reversed(pack.steps)]) or NOTHING,
    }


def _pool_line(rules: FleetRules, number: int) -> str:
    pool = rules.pools[number]
    offers = "what jobs ask for" if BY_JOBS in pool.layouts else ", ".join(
        f"{count} × {'whole GPU' if name == WHOLE_GPU else name}" for name, count in pool.offers.items()
    )  # fmt: skip
    names = ", ".join(pool.nodes)
    if len(pool.nodes) > 8:
        names = f"{pool.nodes[0]} to {pool.nodes[-1]} ({pool.count})"
    most, kept = (f"at most {pool.most}", str(pool.kept)) if rules.comes_and_goes else ("all", "all")
    return f"| {pool.name} | {names or pool.count} | {most} | {kept} | {offers} |"


def _durations(pack: FleetPack) -> list[str]:
    """How long changes take, and what is left to do by hand."""
    rules, found = pack.rules, list[str]()
    changed = rules.layout_plan().filter("changed")["node"].n_unique() if rules.named else 0
    if changed and any("change" in step.file for step in pack.steps):
        emptied = "emptied and cut: each"
        if rules.path == "nvml":
            emptied = "cut GPU by GPU while the rest of each stays at work: a GPU that goes"
        found.append(
            f"- {counted(changed, 'node')} {'is' if changed == 1 else 'are'} {emptied} takes no new work "
            "from the beginning, is waited for at most "
            f"{minutes(float(timeout_s(pack.drain.limit_s)))}, and then takes {pack.change.words()}. Jobs that run "
            "there end by themselves; none is ended. A script that gave a node up ends with 75: run the same words "
            "again. It waits in the foreground: begin where it outlives your session (tmux, screen)."
        )
        if rules.path != "parted":
            found.append(
                "- `check` instead of `apply` says what would stop a change of layout, and changes nothing."
            )
    if pack.place("power.sh") in pack.files:
        found.append(
            f"- Before anything else put what switches your machines into `{pack.place('power.sh')}`: as it is, it "
            "only logs, nodes stay on, and nothing is saved."
        )
    if pack.place("released.txt") in pack.files:
        found.append(
            f"- Once the nodes of `{pack.place('released.txt')}` are empty, {pack.release_words} by your own "
            "means: the saving counts on it, and no file here can do it."
        )
    return found


def _fence(commands: Sequence[str]) -> str:
    lines: list[str] = []
    for command in commands:
        # What was set before need not be set again.
        lines += [line for line in command.splitlines() if line not in lines]
    return "```bash\n" + "\n".join(lines) + "\n```" if lines else ""


MARK = Mark(MANIFEST, "gpuplanner export 1")
ENDS_WAITS = ("pack", "raise_limit", "repartition", "rightsize")
FOLDER = "export"
"""Where the pack stands in the folder of a report or of a start."""


def decision_pack(scenario: Scenario, found: Comparison, *, gres_type: str | None = None) -> Pack | None:
    """The files of what was decided, and the page that says how to use them; None where nothing was."""
    rules, decision = found.rules, found.decision
    if rules is None:
        return None
    board = any_board(rules.board) if known_board(rules.board) else whole_board(rules.board)
    change = cost_of_change(scenario, board)
    rules = replace(rules, quotas=tuple(_quotas(scenario, board)))
    told = PageWords(
        decision.sentence,
        WAYS[decision.policy].meaning,
        touched=tuple(_touched(decision)),
        means=_means(rules),
        measures=tuple(_measures(decision)),
        command=f"gpuplanner export {scenario.data} --path {rules.path}",
    )
    return to_pack(rules, told, change, drain_of(scenario, change), gres_type=gres_type)


def pack_into(scenario: Scenario, found: Comparison, folder: Path) -> None:
    """Write the pack into a folder of its own in the folder of a page."""
    pack = decision_pack(scenario, found)
    if pack is not None:
        pack.write(folder / FOLDER)


def kept_study(folder: Path) -> Study | None:
    """The study that a start or a report left in its folder; None where it has none, or its input is not the same."""
    with contextlib.suppress(OSError, GpuPlannerError):
        study = open_study(folder)
        scenario = study.scenario
        inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILES))
        if (study.provenance.gpuplanner, study.provenance.inputs) == (__version__, inputs):
            return study
    return None


def export_decision(
    scenario: Scenario, out: str | Path, *, gres_type: str | None = None, kept: Study | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Write the files of a decision: their places, and what was left out of them.

    The decision is that of `kept` if it is of the same scenario, else that which is on disk; only where there is
    none the ways are simulated.
    """
    # No price and no project changes a file: what was simulated is enough.
    found = kept.comparison if kept is not None and kept.scenario == scenario else played(scenario)
    pack = decision_pack(scenario, found, gres_type=gres_type)
    if pack is None:
        raise ScenarioError(
            f"export of {scenario.name}", "a decision", found.decision.sentence, "Read more jobs."
        )
    with replaced_directory(out, mark=MARK) as folder:
        pack.write(folder)
    return [Path(out) / name for name in sorted(pack.files)], tuple(pack.warnings)


def hand_over(scenario: Scenario, found: Comparison, out: str | Path) -> Path:
    """Write the pack of a comparison that is at hand, and a workbook of its figures, into a folder: its README.

    It is what the button of the what-if panel does: ``hand_over(scenario, found, "build/export")``.
    """
    from gpuplanner.report.finance_exports import write_workbook

    pack = decision_pack(scenario, found)
    tables = {
        "Policies": policy_table(found),
        "Waits": service_table(found),
        "Wait curve": curve_table(found),
    }
    notes = {"Decision": found.decision.sentence, "How sure": " ".join(found.decision.how_sure)}
    with replaced_directory(out, mark=MARK) as folder:
        if pack is not None:
            pack.write(folder)
        write_workbook(
            folder / "workbook.xlsx", tables, title=scenario.name, notes=notes, locale=scenario.number_locale
        )
    return Path(out) / (PAGE if pack is not None else "workbook.xlsx")


def _quotas(scenario: Scenario, board: GpuModel) -> Iterator[TenantQuota]:
    """What tenants may hold of the board, where its queues were read; flavors of other boards are left out."""
    file = data_folder(scenario.data) / "queue_quotas.parquet"
    if not file.exists():
        return
    table = read_table(file, QueueQuotas)
    share = pl.col("profile").map_elements(board.share, return_dtype=pl.Float64).fill_null(1.0)
    gpus = {name: (pl.col(name) * share).sum() for name in ("nominal", "borrow", "lend")}
    mine = table.filter(pl.col("gpu_model").fill_null(board.name) == board.name)
    limits = (
        pl.when(pl.col(name).is_null().any()).then(None).otherwise(gpus[name]).alias(name)
        for name in ("borrow", "lend")
    )
    words = pl.col("cohort", "namespaces").first()
    rows = mine.group_by("tenant", maintain_order=True).agg(gpus["nominal"], *limits, words)
    for tenant, own, borrow, lend, cohort, namespaces in rows.iter_rows():
        names = tuple(namespaces.split(",")) if namespaces else ()
        yield TenantQuota(tenant, own, cohort, borrow, lend, names)


def _touched(decision: Decision) -> Iterator[str]:
    """Who starts later than today, and who is asked to ask otherwise."""
    later = [one for one in decision.service if one.added_p95_minutes > ROUNDING_MINUTES]
    for one in later:
        yield (
            f"Jobs on {one.size}: p95 queue wait {wait_text(one.recommended_p95_minutes)}, today "
            f"{wait_text(one.today_p95_minutes)}."
        )
    if decision.measures and decision.measures[-1].action in IDLE_ACTIONS:
        yield "Jobs that find no node powered on: they wait until one has come."
    elif not later and len(decision.measures) > 1:
        yield "None if the measures are in force in this order: then the p95 queue wait rises for no job size."
    elif not later:
        yield "None: the p95 queue wait rises for no job size."


def _measures(decision: Decision) -> Iterator[MeasureWords]:
    """The measures in order, each with what has to be seen before it."""
    latest = decision.latest
    again = decision.next_steps[-1].command if decision.next_steps else None
    for number, one in enumerate(decision.measures):
        condition = f"Only once {number} is in force." if one.condition else ""
        if one.condition and latest and decision.measures[number - 1].action in ENDS_WAITS:
            condition = (
                f"Only once {number} is in force and has shortened waits: p95 queue wait on {latest.size} "
                f"{wait_text(latest.today_p95_minutes)} today, {wait_text(latest.recommended_p95_minutes)} simulated "
                f"with all measures. Let a week pass, export the jobs again, and see it with `{again}`: "
                f"without {number} jobs wait longer."
            )
        steps = [(step.what, step.command) for step in decision.next_steps if step.action == one.action]
        yield MeasureWords(one.action, one.text, condition, steps)


def _means(rules: FleetRules) -> str:
    """What has to hold for the figures to hold."""
    if rules.requests == RIGHTSIZED:
        return (
            "It holds if jobs ask for the slice that they need and not for more: `gpuplanner hints DATA` lists what to "
            "write into which job, from the data that this was decided on; agree on it with owners before anything "
            "below, and have jobs changed once the check below passes."
        )
    return "Jobs ask for what they ask for today."
