"""The change bundle: files that operators apply, with a page that says how."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import GeometryError, GpuPlannerError, ScenarioError
from gpuplanner.core.output_places import MANIFEST, FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario
from gpuplanner.core.schemas import FULL_GPU, QueueQuotas
from gpuplanner.core.stage_cache import data_folder, input_hashes
from gpuplanner.core.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, count_text, wait_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    make_policy_table,
    make_service_table,
    make_wait_curve_table,
    study_comparison,
)
from gpuplanner.decision.decision_text import IDLE_ACTIONS, format_node_list
from gpuplanner.decision.decision_types import WAIT_TOLERANCE_MINUTES, Decision
from gpuplanner.decision.plan_rehearsal import make_drain_rule
from gpuplanner.decision.policy_comparison import POLICIES
from gpuplanner.decision.policy_fleets import LAYOUT_CUT_BY_JOBS, FleetRules, TenantQuota
from gpuplanner.decision.requests import RIGHTSIZED
from gpuplanner.decision.study import Study, open_study
from gpuplanner.hardware.catalog import find_measure_texts
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model, load_any_gpu_model, make_non_mig_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost, find_change_cost
from gpuplanner.ingest.gpu_model_resolution import try_expand_node_list
from gpuplanner.ingest.large_tables import read_table
from gpuplanner.planner.layout_plan import check_layout_plan, node_states_at
from gpuplanner.report.bundle_files import (
    CONFIG_MAP,
    NAMESPACE,
    POLICY_STEP,
    FleetPack,
    MeasureWords,
    Pack,
    PageWords,
    Step,
    add_release,
    duration_words,
    filled,
    lines_of,
    replaced,
    switched_nodes,
    text_blocks,
    to_index_text,
    unused_slices_text,
)
from gpuplanner.report.mig_manager_files import allocatable, to_change_scripts, to_config_map, to_mig_parted
from gpuplanner.report.slurm_files import INSTALL, STATIC_GRES, GresTypes, site_types, to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.usage.planned_fleet import is_catalogue_model

PAGE = "README.md"
NOTHING = "Nothing to do."
CHANGES_FLEET = ("repartition", "rightsize", "power_down", "autoscale")
"""Measures that files perform: those that belong to no other measure."""


def to_pack(
    rules: FleetRules, told: PageWords, change: ChangeCost, drain: Drain, *, gres_type: GresTypes | str | None = None
) -> Pack:
    """The files of what was decided, and the page that says how to use them."""
    from gpuplanner.report.kubernetes_pools import add_queues, on_demand, pools
    from gpuplanner.report.slurm_files import power_saving

    gpu_model = change.gpu_model or as_gpu_model(rules.gpu_model)
    pack = FleetPack(rules=rules, gpu_model=gpu_model, change=change, drain=drain, gres_type=gres_type)
    if not rules.has_node_names and rules.actuator != "autoscaler":
        pack.warnings.append("the data do not name the nodes; files that name nodes are left out")
    recipe = {"slurm": _on_slurm, "mig-parted": _by_parted}.get(rules.actuator, _by_operator)
    by_jobs = any(LAYOUT_CUT_BY_JOBS in pool.layouts for pool in rules.pools)
    if by_jobs:
        recipe = on_demand
    elif rules.actuator == "autoscaler" or (rules.powers_nodes_down and rules.actuator != "slurm"):
        recipe = pools
    elif rules.powers_nodes_down:
        recipe = power_saving
    try:
        if by_jobs and rules.actuator != "dra":
            pack.warnings.append(f"actuator {rules.actuator} cannot partition GPUs on request; use --actuator dra")
        elif rules.has_node_names or recipe is pools:
            recipe(pack)
        if recipe in (_by_operator, pools):
            add_queues(pack)
    except GeometryError as error:
        pack.warnings.append(f"files for {rules.actuator} are incomplete: {error}")
    pack.files[PAGE] = to_page(pack, told)
    return pack


def _by_operator(pack: FleetPack) -> None:
    """The MIG manager cuts what a label names, or a script makes the instances of one GPU; it keeps the order."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    by_gpu = rules.actuator == "nvidia-smi"
    if pack.gpu_model.profiles and not by_gpu:
        says = "MIG configurations, one per node layout, for the MIG manager; `policy.sh` creates it"
        place = pack.place("configmap.yaml")
        pack.add(to_config_map(plan, pack.gpu_model), Step(place, says))
        pack.add_script("policy.sh", POLICY_STEP)
    if pack.gpu_model.profiles:
        drain = replace(pack.drain, scope="gpu") if by_gpu else pack.drain
        scripts = to_change_scripts(plan, pack.gpu_model, change=pack.change, drain=drain)
        _add_index(pack)
        does = "drains nodes, repartitions them, verifies, uncordons"
        for text in scripts.values():  # one: the fleet changes once
            what = "repartitions GPUs one by one, verifies" if by_gpu else does
            pack.add(text, Step.script(pack.place("change.sh"), what))
    add_release(pack, rules.released, "cordons and empties the nodes of `released.txt`, which are not needed")


def _by_parted(pack: FleetPack) -> None:
    """mig-parted on each node, by ssh."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    if pack.gpu_model.profiles:
        pack.add(
            to_mig_parted(plan, pack.gpu_model),
            Step(pack.place("mig-parted.yaml"), "MIG configurations, one per node layout"),
        )
        last = plan["slot_start"].max()
        held = node_states_at(check_layout_plan(plan, pack.gpu_model), last)  # type: ignore[arg-type]
        changed = sorted(set(plan.filter("changed")["node"]))
        if changed:
            steps = "\n".join(f"config[{node}]={held[node].config_name}" for node in changed)
            text = pack.script("change_parted.sh", STEPS=steps, NODES=" ".join(changed), NAME=pack.index["change"][0])
            what = "waits for a node's GPU processes to end, repartitions it, verifies; saves its earlier layout"
            _add_index(pack)
            pack.add(text, Step.script(pack.place("change.sh"), what))
    if rules.released:
        what = f"nodes that are not needed: drain them, then {pack.release_words}"
        pack.add(lines_of(rules.released), Step(pack.place("released.txt"), what))


def _on_slurm(pack: FleetPack) -> None:
    """Lines of slurm.conf, and a script that keeps the order."""
    rules, plan = pack.rules, pack.rules.layout_plan()
    what = "drains the nodes of `released.txt`, which are not needed"
    if not plan["changed"].any():
        # To drain nodes, neither the type of their GPUs nor the lines of the others are needed.
        add_release(pack, rules.released, what)
        return
    files = to_slurm_files(plan, pack.gpu_model, gres_type=pack.gres_type, change=pack.change, drain=pack.drain)
    scripts = [name for name in files if name.startswith("change-")]
    if pack.gpu_model.profiles:
        yaml = pack.place("mig-parted.yaml")
        says = "MIG configurations, one per node layout; copied to the nodes of `changed.txt`"
        pack.add(to_mig_parted(plan, pack.gpu_model), Step(yaml, says))
        changed = lines_of(sorted(set(plan.filter("changed")["node"])))
        pack.add(changed, Step(pack.place("changed.txt"), "nodes that are repartitioned"))
    purposes = {  # the fleet changes once; of the lines of before and after that, those of after
        f"slurm-{scripts[0][7:-3]}.conf": "planned Gres of all nodes, as lines of slurm.conf",
        INSTALL: "writes Gres of changed nodes into the live slurm.conf; keeps `slurm.conf.before-gpuplanner`",
        "gres.conf": f"for nodes whose Slurm has NVML; the others need the output of `{STATIC_GRES}`",
        STATIC_GRES: "prints gres.conf on a node whose Slurm has no NVML; set `STATIC_GRES`",
    }
    for name, purpose in purposes.items():
        pack.add(files[name].replace(scripts[0], "change.sh"), Step(pack.place(name), purpose))
    _add_index(pack)
    does = "drains nodes, waits, repartitions them, runs `install-gres.sh`, reconfigures Slurm, verifies, resumes"
    step = Step.script(pack.place("change.sh"), does)
    parted = f"export PARTED={pack.mig_parted_path}\n"
    pack.add(files[scripts[0]], replace(step, do=parted + step.do, undo=parted + step.undo))
    add_release(pack, rules.released, what)


def _add_index(pack: FleetPack) -> None:
    if pack.index.height:
        text = to_index_text(pack.index, pack.gpu_model, pack.change, pack.rules.actuator)
        pack.add(text, Step(pack.place("changes.md"), "layout changes by node and GPU"))


def to_page(pack: FleetPack, told: PageWords) -> str:
    """The page that is read first."""
    rules, warnings = pack.rules, "; ".join(pack.warnings)
    text, changes = _page_texts(pack, told), bool(_changed(pack))
    rightsized = rules.requests == RIGHTSIZED
    there = {name: name * (pack.place(name) in pack.files) for name in ("policy.sh", "power.sh", "released.txt")}
    notes = [there["policy.sh"], "emptying", "in_parts" * (len(_changed(pack)) > 1), "timeout" * changes]
    notes += ["mode_change", "reboot", there["power.sh"], there["released.txt"]]
    undo = ["back_requests" * rightsized, *["back_nodes", "back_reboot"] * changes, "back_policy" * bool(notes[0])]
    kind = "kept" if isinstance(pack.gres_type, GresTypes) else "given" if pack.gres_type else "detected"
    known = {
        "TITLE": f"Incomplete change bundle: {warnings}" if warnings else told.sentence,
        "ACTUATOR": rules.actuator,
        "POLICY": text(f"policy_{rules.policy}") or told.policy,
        "GPU_MODEL": rules.gpu_model,
        "BEGINS": (rules.begins or "")[:16].replace("T", " ") + " UTC",
        "WHERE": text("where"),
        "REASON": [f"- {line}" for line in (*([told.sentence] if warnings else []), *told.reasons)],
        "POOLS": _pool_table(rules, sum(measure.bought_gpus for measure in told.measures)),
        "AGREE": [
            text("rightsized" if rightsized else "as_today"),
            *map(text, ("rollout_gap", "unused", "capacity", "emptying_record")),
            _quota_text(pack, text),
            text(f"types_{kind}") * changes,
        ],
        "PREFLIGHT": text("preflight" if changes else "preflight_files"),
        "NOTES": map(text, notes),
        "SWITCH": text("switch") * rightsized,
        "BACK": map(text, undo),
        **page_tables(pack),
        **(_by_measure(pack, told) if told.measures else {}),
    }
    values = {name: text if isinstance(text, str) else "\n".join(filter(None, text)) for name, text in known.items()}
    bought = not pack.steps and all(measure.bought_gpus for measure in told.measures) and bool(told.measures)
    return re.sub(r"\n{3,}", "\n\n", filled("purchase.md" if bought else "readme.md", values))


def _changed(pack: FleetPack) -> list[str]:
    """Nodes that a script of the pack repartitions."""
    if not any(step.file.endswith("/change.sh") for step in pack.steps):
        return []
    return sorted(set(pack.rules.layout_plan().filter("changed")["node"]))


def _page_texts(pack: FleetPack, told: PageWords) -> Callable[[str], str]:
    """Texts of the page by name, those of the actuator first."""
    rules, nodes, limit = pack.rules, _changed(pack), pack.drain.limit_s
    blocks, gap = text_blocks(), nodes and rules.requests == RIGHTSIZED
    full = sum(pool.count * pool.offers.get(FULL_GPU, 0) for pool in rules.pools)
    configs = [(pool.state.config_name, [node for node in pool.nodes if node in nodes]) for pool in rules.pools]
    values = {
        "NAMESPACE": NAMESPACE, "CONFIG_MAP": CONFIG_MAP, "ACTUATOR": rules.actuator, "DATA": told.data,
        "NODES": format_node_list(nodes), "NODE": (nodes or [""])[0],
        "SCRIPT": pack.place("change.sh") if nodes else "",
        "GPUS": str(sum(len(rules.todays_layouts[node]) for node in nodes)),
        "TOTAL": str(sum(map(len, rules.todays_layouts.values()))),
        "LIMIT": "without a limit" if limit is None else f"up to {wait_text(limit / SECONDS_PER_MINUTE)}",
        "DURATION": duration_words(pack.index, pack.change) if nodes else "", "RELEASE": pack.release_words,
        "EMPTYING": told.emptying if nodes else "", "TYPE": str(getattr(pack.gres_type, "full", pack.gres_type)),
        "FULL": f"{full:,}" if gap else "", "PARTED": pack.mig_parted_path if nodes else "",
        "SWITCHED": format_node_list(switched_nodes(pack.index)) if nodes and pack.change.reboot_s else "",
        "UNUSED": unused_slices_text(pack.index, pack.gpu_model) if nodes else "",
        "CONFIGS": ", ".join(f"`{config}` on {format_node_list(names)}" for config, names in configs if names),
    }  # fmt: skip

    def text(name: str) -> str:
        found = blocks.get(f"{name} {rules.actuator}", blocks.get(name, ""))
        # A text about what this bundle does not have is left out.
        empty = any(f"@{key}@" in found for key, value in values.items() if not value)
        return "" if empty else replaced(found.strip(), values)

    return text


def _quota_text(pack: FleetPack, text: Callable[[str], str]) -> str:
    """What queue managers have to be told of the resources of the planned fleet."""
    rules = pack.rules
    if rules.actuator not in ("mig-manager", "nvidia-smi") or rules.powers_nodes_down:
        return ""
    if pack.place("queues.sh") in pack.files:
        return text("quotas_set")
    today, then = Counter[str](), Counter[str]()
    for pools, total in ((rules.today, today), (rules.pools, then)):
        for pool in pools:
            total.update({name: count * pool.count for name, count in allocatable(pool.state).items()})
    changes: dict[str, list[str]] = {"lower before `apply`": [], "raise after `verify`": []}
    for one in sorted(today | then):
        verb = list(changes)[then[one] > today[one]]
        changes[verb] += [f"`{one}` {today[one]:,} → {then[one]:,}"] if then[one] != today[one] else []
    parts = [f"{verb}: {', '.join(words)}" for verb, words in changes.items() if words]
    return f"{text('quotas_by_hand')} {'; '.join(parts)}." if parts else ""


def _by_measure(pack: FleetPack, told: PageWords) -> dict[str, str]:
    """What to do, check and undo for each measure, in order."""
    other = next((one.action for one in told.measures if one.action in CHANGES_FLEET), "")
    do, check, undo = list[str](), list[str](), list[str]()
    several = len(told.measures) > 1
    for number, one in enumerate(told.measures, start=1):
        steps = [step for step in pack.steps if (step.action or other) == one.action]
        by, commands, checked, undone = "", [step.do for step in steps], "", ""
        if not any(commands):
            by, commands, checked, undone = _by_hand(pack, told, one)
        name = f"{number}. **{one.text}.**" if several or not one.steps else ""
        lines = [step[0] for step in one.steps] + [by] * bool(one.bought_gpus)
        head = " ".join(filter(None, (name, one.condition, "" if one.bought_gpus else by)))
        listed = [f"{'   ' * several}- {what[:1].upper()}{what[1:]}" for what in lines]
        do.append("\n".join([*filter(None, [head, *listed]), "", _fence(commands)]).strip())
        checked += _fence([step.check for step in steps])
        undone += _fence([step.undo for step in reversed(steps)])
        mark = f"Measure {number}:\n\n" if several else ""
        check += [mark + checked] if checked else []
        undo += [mark + undone] if undone else []
    rest = [] if other else [step.do for step in pack.steps if not step.action and step.do]
    do += [f"The other files keep settings as they are today:\n\n{_fence(rest)}"] if rest else []
    parts = {"DO": do, "CHECK": check, "UNDO": undo[::-1]}
    return {key: "\n\n".join(texts) or NOTHING for key, texts in parts.items()}


def _by_hand(pack: FleetPack, told: PageWords, one: MeasureWords) -> tuple[str, list[str], str, str]:
    """Why no file performs a measure, the commands that do, and how it is checked and undone."""
    pack.by_hand.append(one.action)
    if one.action in CHANGES_FLEET:
        why = "; ".join(pack.warnings)
        return f"No file here carries it out ({why}); fix this, then run `{told.command}`.", [], "", ""
    commands = [command for _, command in one.steps if command]
    words = find_measure_texts(one.action, pack.rules.actuator)
    checked, undone = (words[name].replace("{nodes}", "NODES") for name in ("check", "undo"))
    by = f"After delivery: {words['edit']}." if one.bought_gpus else "No file carries it out; by hand:"
    return by, commands, checked, undone


def page_tables(pack: Pack) -> dict[str, str]:
    """What a page says of the files: the list of them, and the commands."""
    return {
        "FILES": "\n".join(f"| `{step.file}` | {step.what} |" for step in pack.steps) or "| none | no file needed |",
        "DO": _fence([step.do for step in pack.steps]) or NOTHING,
        "CHECK": _fence([step.check for step in pack.steps]) or NOTHING,
        "UNDO": _fence([step.undo for step in reversed(pack.steps)]) or NOTHING,
    }


def _pool_table(rules: FleetRules, bought_gpus: int = 0) -> str:
    """Nodes and resources of each pool, and the nodes to buy; where nodes are powered down, also how many are up."""
    moving = rules.powers_nodes_down
    heads = ["pool", "nodes", *(["powered on at most", "idle nodes kept"] if moving else []), "resources of a node"]
    lines = [heads, ["---"] * len(heads)]
    for pool in rules.pools:
        resources = "MIG instances as requested" if LAYOUT_CUT_BY_JOBS in pool.layouts else ", ".join(
            f"{count} × {'full GPU' if name == FULL_GPU else name}" for name, count in pool.offers.items()
        )  # fmt: skip
        counts = [str(pool.max_nodes_on), str(pool.kept)] if moving else []
        lines.append([pool.name, format_node_list(pool.nodes) or str(pool.count), *counts, resources])
    if bought_gpus and len({len(pool.layouts) for pool in rules.today}) == 1:
        size = len(rules.today[0].layouts)
        lines.append(["to buy", count_text(bought_gpus // size, "new node"), *[""] * (2 * moving), f"{size} GPUs"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fence(commands: Sequence[str]) -> str:
    lines: list[str] = []
    for command in commands:
        # What was set before need not be set again.
        lines += [line for line in command.splitlines() if line not in lines]
    return "```bash\n" + "\n".join(lines) + "\n```" if lines else ""


MARK = FolderMark(MANIFEST, "gpuplanner export 1")
ENDS_WAITS = ("pack", "raise_limit", "repartition", "rightsize")
FOLDER = "export"
"""Where the pack stands in the folder of a report or of a start."""


def time_to_empty(scenario: Scenario, nodes: Sequence[str]) -> tuple[float, float] | None:
    """How long nodes took in the record until their last job had ended, from each hour on: median and p95 [s]."""
    file = data_folder(scenario.data) / "jobs.parquet"
    if not nodes or not file.exists():
        return None
    jobs = pl.read_parquet(file, columns=["node_list", "start_time", "end_time"]).drop_nulls()
    there = [one for one in jobs["node_list"].unique() if not {*nodes}.isdisjoint(try_expand_node_list(one) or ())]
    starts = jobs.filter(pl.col("node_list").is_in(there)).sort("start_time").set_sorted("start_time")
    if starts.is_empty():
        return None
    ends = starts.select("start_time", last=pl.col("end_time").cum_max())
    hours = ends.select(pl.datetime_range(pl.col("start_time").min(), pl.col("start_time").max(), "1h"))
    left = (pl.col("last") - pl.col("start_time")).dt.total_seconds().clip(0)
    waits = hours.join_asof(ends, on="start_time").select(left).to_series()
    return float(waits.quantile(0.5) or 0), float(waits.quantile(0.95) or 0)


def decision_pack(scenario: Scenario, found: Comparison, *, gres_type: str | None = None) -> Pack | None:
    """The files of what was decided, and the page that says how to use them; None where nothing was."""
    rules, decision = found.rules, found.decision
    if rules is None:
        return None
    gpu_model = (
        load_any_gpu_model(rules.gpu_model)
        if is_catalogue_model(rules.gpu_model)
        else make_non_mig_model(rules.gpu_model)
    )
    change = find_change_cost(scenario, gpu_model)
    rules = replace(rules, quotas=tuple(_quotas(scenario, gpu_model)))
    drain, emptying, changed = make_drain_rule(scenario, change), "", rules.layout_plan().filter("changed")["node"]
    times = time_to_empty(scenario, [*changed.unique(), *rules.released])
    if times is not None and drain.scope == "node":
        emptying = "{} (median), {} (p95)".format(*(wait_text(each / SECONDS_PER_MINUTE) for each in times))
        if drain.limit_s == change.drain_s.high:  # no maintenance window limits it
            hours_s = math.ceil(times[1] / SECONDS_PER_HOUR) * SECONDS_PER_HOUR
            drain = replace(drain, limit_s=max(drain.limit_s, hours_s))
    types = gres_type or (site_types(scenario.data, gpu_model) if rules.actuator == "slurm" else None)
    told = PageWords(
        decision.sentence, POLICIES[decision.policy].meaning, tuple(_reasons(decision)), tuple(_measures(decision)),
        f"gpuplanner export {scenario.data} --actuator {rules.actuator}", str(scenario.data), emptying,
    )  # fmt: skip
    return to_pack(rules, told, change, drain, gres_type=types)


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
        inputs = input_hashes(scenario.data, *(getattr(scenario, name) for name in FILE_PATH_FIELDS))
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
    # No project changes a file, but README.md states the cost at the scenario's prices, as the report does.
    found = kept.comparison if kept is not None and kept.scenario == scenario else study_comparison(scenario)
    pack = decision_pack(scenario, found, gres_type=gres_type)
    if pack is None:
        raise ScenarioError(f"export of {scenario.name}", "a decision", found.decision.sentence, "Ingest more jobs.")
    with replace_directory(out, mark=MARK) as folder:
        pack.write(folder)
    return [Path(out) / name for name in sorted(pack.files)], tuple(pack.warnings)


def hand_over(scenario: Scenario, found: Comparison, out: str | Path) -> Path:
    """Write the pack of a comparison that is at hand, and a workbook of its figures, into a folder: its README.

    It is what the button of the what-if panel does: ``hand_over(scenario, found, "build/export")``.
    """
    from gpuplanner.report.finance_exports import write_workbook

    pack = decision_pack(scenario, found)
    tables = {
        "Policies": make_policy_table(found),
        "Waits": make_service_table(found),
        "Wait curve": make_wait_curve_table(found),
    }
    notes = {"Decision": found.decision.sentence, "Confidence": " ".join(found.decision.confidence)}
    with replace_directory(out, mark=MARK) as folder:
        if pack is not None:
            pack.write(folder)
        write_workbook(
            folder / "workbook.xlsx", tables, title=scenario.name, notes=notes, locale=scenario.number_locale
        )
    return Path(out) / (PAGE if pack is not None else "workbook.xlsx")


def _quotas(scenario: Scenario, gpu_model: GpuModel) -> Iterator[TenantQuota]:
    """What tenants may hold of the board, where its queues were read; flavors of other boards are left out."""
    file = data_folder(scenario.data) / "queue_quotas.parquet"
    if not file.exists():
        return
    table = read_table(file, QueueQuotas)
    share = pl.col("profile").map_elements(gpu_model.gpu_fraction, return_dtype=pl.Float64).fill_null(1.0)
    gpus = {name: (pl.col(name) * share).sum() for name in ("nominal", "borrow", "lend")}
    mine = table.filter(pl.col("gpu_model").fill_null(gpu_model.name) == gpu_model.name)
    limits = (
        pl.when(pl.col(name).is_null().any()).then(None).otherwise(gpus[name]).alias(name)
        for name in ("borrow", "lend")
    )
    words = pl.col("cohort", "namespaces").first()
    rows = mine.group_by("tenant", maintain_order=True).agg(gpus["nominal"], *limits, words)
    for tenant, own, borrow, lend, cohort, namespaces in rows.iter_rows():
        names = tuple(namespaces.split(",")) if namespaces else ()
        yield TenantQuota(tenant, own, cohort, borrow, lend, names)


def _reasons(decision: Decision) -> Iterator[str]:
    """Why, what happens to waits, and what it costs: the lines of a change ticket."""
    if (size := decision.most_improved_size) is not None:
        observed, today, then = (
            wait_text(each)
            for each in (size.observed_p95_minutes, size.today_p95_minutes, size.recommended_p95_minutes)
        )
        yield (
            f"Reason: p95 queue wait on {size.size} {observed} observed; in simulation {today} today and {then} after "
            "the change."
        )
    later = [one for one in decision.service if one.added_p95_minutes > WAIT_TOLERANCE_MINUTES]
    for one in later:
        yield (
            f"Jobs on {one.size} wait longer: p95 queue wait {wait_text(one.recommended_p95_minutes)}, today "
            f"{wait_text(one.today_p95_minutes)}."
        )
    if decision.measures and decision.measures[-1].action in IDLE_ACTIONS:
        yield "Jobs that find no node powered on wait until one is up."
    elif not later and decision.service:
        order = ", if the measures take effect in this order" if len(decision.measures) > 1 else ""
        means = [(one.size, one.today_mean_minutes, one.recommended_mean_minutes) for one in decision.service]
        rises = [f"{size} ({was:.1f} → {then:.1f} min)" for size, was, then in means if then - was >= 0.1]
        rise = f" The mean queue wait rises on {', '.join(rises)}." if rises else ""
        yield f"In the recorded period, no job size waits longer at p95 after the change{order}.{rise}"
    if any(measure.action == "buy" for measure in decision.measures):
        yield f"Purchase lead time {decision.purchase_lead_days} days; until then queue waits stay as they are today."
    if decision.confidence:
        yield f"Confidence: {' '.join(decision.confidence)}"
    yield f"Cost: {decision.financial_impact.basis.splitlines()[0].removeprefix('Spend ')}"
    yield "Approved by: ____"


def _measures(decision: Decision) -> Iterator[MeasureWords]:
    """The measures in order, each with what has to be seen before it."""
    latest = decision.longest_waiting
    again = decision.next_steps[-1].command if decision.next_steps else None
    for number, one in enumerate(decision.measures):
        condition = f"Only once step {number} is in effect." if one.condition else ""
        if one.condition and latest and decision.measures[number - 1].action in ENDS_WAITS:
            condition = (
                f"Only once step {number} is in effect and has shortened waits: p95 queue wait on {latest.size} "
                f"{wait_text(latest.today_p95_minutes)} today, {wait_text(latest.recommended_p95_minutes)} simulated "
                f"with all measures. After a week, export the jobs again and check with `{again}`: "
                f"without step {number}, jobs wait longer."
            )
        steps = [
            (step.what, step.command)
            for step in decision.next_steps
            if step.action == one.action and not (step.command or "").startswith("gpuplanner rightsize")
        ]  # requests are switched after the nodes are verified
        bought_gpus = (one.gpus - decision.fleet_gpus) * (one.action == "buy")
        yield MeasureWords(one.action, one.text, condition, steps, bought_gpus)
