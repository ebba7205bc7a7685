"""Change bundle of a recommendation: files of its actuator, their parts, and the README with all steps."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuplanner.core.errors import GeometryError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import SECONDS_PER_MINUTE, count_text, wait_text
from gpuplanner.decision.decision_text import MAX_LISTED_NODES, format_node_list
from gpuplanner.decision.decision_types import IDLE_ACTIONS, LAYOUT_PER_JOB, PARTITION_ACTIONS
from gpuplanner.decision.inference_services import PlannedService
from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.decision.requested_jobs import RIGHTSIZED
from gpuplanner.hardware.catalog import find_measure_texts
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import check_layout_plan, node_states_at
from gpuplanner.report.change_bundle_parts import (
    CLUSTER_POLICY_PURPOSE,
    GPU_OPERATOR_NAMESPACE,
    MIG_CONFIG_MAP_NAME,
    Bundle,
    FileStep,
    FleetBundle,
    MeasureText,
    PageText,
    add_release_files,
    describe_duration,
    describe_unused_slices,
    fill_template,
    find_mode_change_nodes,
    join_lines,
    read_controller_facts,
    read_readme_texts,
    replace_placeholders,
    to_index_text,
)
from gpuplanner.report.mig_manager_files import resource_name, to_change_scripts, to_config_map, to_mig_parted
from gpuplanner.report.service_schedule_files import add_service_files
from gpuplanner.report.slurm_files import INSTALL_SCRIPT, STATIC_GRES_SCRIPT, GresTypes, to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain

README_FILE = "README.md"
NOTHING_TO_DO_TEXT = "Nothing to do."
"""Text of a README section without commands."""
MIG_PARTED_PATH = "/etc/nvidia-mig-manager/config.yaml"
"""Path of mig-parted.yaml on a node unless a bundle has its own: that of NVIDIA's MIG manager for systemd."""
FLEET_CHANGE_ACTIONS = (*PARTITION_ACTIONS, *IDLE_ACTIONS)
"""Actions of measures that the files of a fleet change carry out together."""


def make_bundle(
    rules: FleetRules, page_words: PageText, change: ChangeCost, drain: Drain, *,
    gres_type: GresTypes | str | None = None, services: Sequence[PlannedService] = (), zone: str = "UTC",
) -> Bundle:  # fmt: skip
    """Make the files of a decision and the README that explains them.

    Parameters
    ----------
    rules : FleetRules
        Target fleet: pools, nodes, policy and actuator.
    page_words : PageText
        Texts of the README about the decision.
    change : ChangeCost
        Duration of a layout change.
    drain : Drain
        How nodes are drained.
    gres_type : GresTypes or str, optional
        GRES types of the nodes in Slurm; by default those that slurmd detects.
    services : sequence of PlannedService
        Inference services, for their schedules.
    zone : str
        Time zone of their hours.

    Returns
    -------
    Bundle
        Files; what could not be written is in ``warnings``.
    """
    from gpuplanner.report.kubernetes_files import add_device_classes, add_dra_files, add_node_pools, add_queues
    from gpuplanner.report.slurm_files import add_power_saving_files

    gpu_model = change.gpu_model or as_gpu_model(rules.gpu_model)
    bundle = FleetBundle(rules=rules, gpu_model=gpu_model, change=change, drain=drain, gres_type=gres_type)
    if not rules.has_node_names and rules.actuator != "autoscaler":
        bundle.warnings.append("the data do not name the nodes; files that name nodes are left out")
    by_actuator = {"slurm": _add_slurm_files, "mig-parted": _add_mig_parted_files}
    add_files = by_actuator.get(rules.actuator, _add_operator_files)
    is_partitioned_on_request = any(LAYOUT_PER_JOB in pool.layouts for pool in rules.pools)
    if is_partitioned_on_request:
        add_files = add_dra_files
    elif rules.actuator == "autoscaler" or (rules.powers_nodes_down and rules.actuator != "slurm"):
        add_files = add_node_pools
    elif rules.powers_nodes_down:
        add_files = add_power_saving_files
    try:
        resources_change = _count_instances(rules.today) != _count_instances(rules.pools)
        # Requests are switched after each part of the nodes, and name resources of the classes.
        if rules.actuator == "dra" and add_files is not add_dra_files and resources_change:
            add_device_classes(bundle)
        if is_partitioned_on_request and rules.actuator != "dra":
            bundle.warnings.append(f"actuator {rules.actuator} cannot partition GPUs on request; use --actuator dra")
        elif rules.has_node_names or add_files is add_node_pools:
            add_files(bundle)
        if add_files is add_node_pools or (add_files is _add_operator_files and resources_change):
            add_queues(bundle)
    except GeometryError as error:
        bundle.warnings.append(f"files for {rules.actuator} are incomplete: {error}")
    add_service_files(bundle, services, zone)
    bundle.files[README_FILE] = render_readme(bundle, page_words)
    return bundle


def _add_operator_files(bundle: FleetBundle) -> None:
    """Add the files for Kubernetes: the ConfigMap of the MIG manager, or the script that repartitions single GPUs."""
    rules, plan = bundle.rules, bundle.rules.layout_plan()
    by_gpu = rules.actuator == "nvidia-smi"
    changes_layouts = bundle.gpu_model.profiles and plan["changed"].any()
    if changes_layouts and not by_gpu:
        purpose_of_map = "MIG configurations, one per node layout, for the MIG manager; `policy.sh` creates it"
        path = bundle.path_of("configmap.yaml")
        bundle.add(to_config_map(plan, bundle.gpu_model), FileStep(path, purpose_of_map))
        bundle.add_script("policy.sh", CLUSTER_POLICY_PURPOSE)
    if changes_layouts:
        drain = replace(bundle.drain, scope="gpu") if by_gpu else bundle.drain
        scripts = to_change_scripts(plan, bundle.gpu_model, change=bundle.change, drain=drain)
        _add_index(bundle)
        purpose_of_nodes = "drains nodes, repartitions them, verifies, uncordons"
        for text in scripts.values():  # one: the fleet changes once
            purpose = "repartitions GPUs one by one, verifies" if by_gpu else purpose_of_nodes
            step = FileStep.script(bundle.path_of("change.sh"), purpose)
            bundle.add(text, step if by_gpu else _apply_in_parts(bundle, step))
    add_release_files(bundle, rules.released, "cordons and empties the nodes of `released.txt`, which are not needed")


def _add_mig_parted_files(bundle: FleetBundle) -> None:
    """Add the mig-parted configuration and the script that applies it to each node by ssh."""
    rules, plan = bundle.rules, bundle.rules.layout_plan()
    changed_nodes = sorted(set(plan.filter("changed")["node"]))
    if bundle.gpu_model.profiles and changed_nodes:
        bundle.add(
            to_mig_parted(plan, bundle.gpu_model),
            FileStep(bundle.path_of("mig-parted.yaml"), "MIG configurations, one per node layout"),
        )
        last_start = plan["slot_start"].max()
        states = node_states_at(check_layout_plan(plan, bundle.gpu_model), last_start)  # type: ignore[arg-type]
        steps = "\n".join(f"config[{node}]={states[node].config_name}" for node in changed_nodes)
        text = bundle.script(
            "change_parted.sh", STEPS=steps, NODES=" ".join(changed_nodes), NAME=bundle.index["change"][0]
        )
        purpose = "waits for a node's GPU processes to end, repartitions it, verifies; saves its earlier layout"
        _add_index(bundle)
        bundle.add(text, _apply_in_parts(bundle, FileStep.script(bundle.path_of("change.sh"), purpose)))
    if rules.released:
        purpose = f"nodes that are not needed: drain them, then {bundle.release_instruction}"
        bundle.add(join_lines(rules.released), FileStep(bundle.path_of("released.txt"), purpose))


def _add_slurm_files(bundle: FleetBundle) -> None:
    """Add lines of slurm.conf and the script that drains, repartitions and resumes nodes."""
    rules, plan = bundle.rules, bundle.rules.layout_plan()
    release_purpose = "drains the nodes of `released.txt`, which are not needed"
    if not plan["changed"].any():
        # To drain nodes, neither the type of their GPUs nor the lines of the others are needed.
        add_release_files(bundle, rules.released, release_purpose)
        return
    files = to_slurm_files(plan, bundle.gpu_model, gres_type=bundle.gres_type, change=bundle.change, drain=bundle.drain)
    scripts = [name for name in files if name.startswith("change-")]
    if bundle.gpu_model.profiles:
        yaml = bundle.path_of("mig-parted.yaml")
        parted_purpose = "MIG configurations, one per node layout; copied to the nodes of `changed.txt`"
        bundle.add(to_mig_parted(plan, bundle.gpu_model), FileStep(yaml, parted_purpose))
        changed_lines = join_lines(sorted(set(plan.filter("changed")["node"])))
        bundle.add(changed_lines, FileStep(bundle.path_of("changed.txt"), "nodes that are repartitioned"))
    purposes = {  # the fleet changes once; of the lines of before and after that, those of after
        f"slurm-{scripts[0][7:-3]}.conf": "planned Gres of all nodes, as lines of slurm.conf",
        INSTALL_SCRIPT: "writes Gres of changed nodes into the live slurm.conf; keeps `slurm.conf.before-gpuplanner`",
        "gres.conf": "of nodes whose Slurm has NVML, to compare with yours; no script installs it (section 2)",
        STATIC_GRES_SCRIPT: "prints gres.conf on a node whose Slurm has no NVML; see `STATIC_GRES` in section 2",
    }
    for name, purpose in purposes.items():
        bundle.add(files[name].replace(scripts[0], "change.sh"), FileStep(bundle.path_of(name), purpose))
    _add_index(bundle)
    purpose = "drains nodes, waits, repartitions them, runs `install-gres.sh`, reconfigures Slurm, verifies, resumes"
    script = files[scripts[0]].replace(MIG_PARTED_PATH, bundle.mig_parted_path)
    bundle.add(script, FileStep.script(bundle.path_of("change.sh"), purpose))
    add_release_files(bundle, rules.released, release_purpose)


def _split_nodes(bundle: FleetBundle) -> list[list[str]]:
    """Split the nodes to repartition into at most ``MAX_LISTED_NODES`` parts; requests are switched after each part.

    All nodes are one part where requests stay, or where the script names no nodes.
    """
    nodes = bundle.index["node"].unique(maintain_order=True).to_list()
    is_whole = bundle.rules.requests != RIGHTSIZED or bundle.rules.actuator in ("slurm", "nvidia-smi")
    size = len(nodes) if is_whole else math.ceil(len(nodes) / MAX_LISTED_NODES)
    return [nodes[start : start + size] for start in range(0, len(nodes), max(size, 1))]


def list_change_parts(bundle: FleetBundle) -> list[tuple[Sequence[str], Counter[str], Counter[str]]]:
    """List the parts in which the fleet changes, in order: the nodes to repartition, then those to release.

    Returns
    -------
    list of (sequence of str, Counter, Counter)
        Nodes that change at the same time; full GPUs and MIG instances of the fleet before and after, by profile.
    """
    rules, before = bundle.rules, _count_instances(bundle.rules.today)
    planned_offers = {node: pool.offers for pool in rules.pools for node in pool.nodes}
    todays_offers = {node: pool.offers for pool in rules.today for node in pool.nodes}
    parts = list[tuple[Sequence[str], Counter[str], Counter[str]]]()
    for nodes in filter(None, [*_split_nodes(bundle), rules.released]):
        after = before.copy()
        for node in nodes:
            after.subtract(todays_offers[node])
            after.update(planned_offers.get(node, {}))
        parts.append((nodes, before, after))
        before = after
    return parts


def _apply_in_parts(bundle: FleetBundle, step: FileStep) -> FileStep:
    """Return the step of a change script with the commands for one part of the nodes after the other."""
    n_parts, has_quotas = len(_split_nodes(bundle)), bundle.rules.actuator == "mig-manager"
    if n_parts == 1:
        return step
    # Released nodes, the last part, have a script of their own.
    parts, planned = list_change_parts(bundle)[:n_parts], _count_instances(bundle.rules.pools)
    lines = [f"# Lower the quotas of {format_node_list(parts[0][0])} (section 1), then:"] * has_quotas
    for (nodes, before, after), next_part in itertools.zip_longest(parts, parts[1:]):
        added = [name for name in after - before if name != FULL_GPU]
        # Of a profile, a later part may add the other instances.
        counts = (
            f"{after[name]:,} of " * (after[name] < planned[name]) + f"{planned[name]:,} × {name}" for name in added
        )
        todo = [f"raise the quotas of {format_node_list(nodes)} (section 1)"] * has_quotas
        if instances := ", ".join(counts):
            todo.append(f"switch requests for {instances} (section 5)")
        if next_part is not None:
            todo += [f"lower the quotas of {format_node_list(next_part[0])}"] * has_quotas + ["go on:"]
        lines += [f"bash {step.file} {verb} {' '.join(nodes)}" for verb in ("apply", "verify")]
        lines += [f"# Now {', then '.join(todo)}{'' if next_part else '.'}"] * bool(todo)
    return replace(step, do="\n".join(lines))


def _add_index(bundle: FleetBundle) -> None:
    """Add the table of layout changes by node and GPU, unless nothing changes."""
    if bundle.index.height:
        text = to_index_text(bundle.index, bundle.gpu_model, bundle.change, bundle.rules.actuator)
        bundle.add(text, FileStep(bundle.path_of("changes.md"), "layout changes by node and GPU"))


def render_readme(bundle: FleetBundle, page_words: PageText) -> str:
    """Render the README of a change bundle as Markdown: reason, files, and commands to apply, check and undo."""
    rules, warnings = bundle.rules, "; ".join(bundle.warnings)
    text, changes = _make_text_lookup(bundle, page_words), bool(_nodes_to_repartition(bundle))
    in_parts = changes and len(_split_nodes(bundle)) > 1
    rightsized = rules.requests == RIGHTSIZED
    names = ("policy.sh", "nodes.sh", "power.sh", "release.sh", "released.txt")
    present = {name for name in names if bundle.path_of(name) in bundle.files}
    # A note on a file is left out where the bundle does not have the file.
    notes = ["policy.sh" * ("policy.sh" in present), "emptying"]
    notes += ["in_parts" * (len(_nodes_to_repartition(bundle)) > 1 and not in_parts)]
    notes += ["timeout" * changes, "mode_change", "reboot"]
    notes += [name * (name in present) for name in ("nodes.sh", "power.sh", "release.sh", "released.txt")]
    is_release_only = "release.sh" in present and not changes and rules.actuator in ("mig-manager", "nvidia-smi")
    quotas = _quota_text(bundle, text)
    prerequisites = "prerequisites" if changes else ""
    if bundle.path_of("driver-values.yaml") in bundle.files:
        prerequisites = "prerequisites_on_request"
    elif bundle.path_of("karpenter.yaml") in bundle.files:
        prerequisites = "prerequisites_pools"
    preflight = "preflight" if changes else "preflight_files"
    undo = ["back_requests" * rightsized, "back_quotas" * bool(quotas), *["back_nodes", "back_reboot"] * changes]
    undo += ["back_policy" * ("policy.sh" in present)]
    gres_source = "kept" if isinstance(bundle.gres_type, GresTypes) else "given" if bundle.gres_type else "detected"
    blocks = {
        "TITLE": f"Incomplete change bundle: {warnings}" if warnings else page_words.sentence,
        "ACTUATOR": rules.actuator,
        "POLICY": text(f"policy_{rules.policy}") or page_words.policy,
        "GPU_MODEL": rules.gpu_model,
        "BEGINS": (rules.begins or "")[:16].replace("T", " ") + " UTC",
        "WHERE": text("where_release" if is_release_only else "where"),
        "REASON": [f"- {line}" for line in (*([page_words.sentence] if warnings else []), *page_words.reasons)],
        "POOLS": _pool_table(rules, page_words.new_pools) + f"\n\n{_instance_table(rules)}" * changes,
        "CAUTION": f"> **Warning:** {page_words.caution}" if page_words.caution else "",
        "AGREE": [
            f"- {page_words.risk} Agree with the owners of these jobs." * bool(page_words.risk),
            text("rightsized" if rightsized else "as_today"),
            *map(text, ("rollout_gap", "unused", "capacity_in_parts" if in_parts else "capacity", "emptying_record")),
            text("added") * changes,
            text("untyped_requests") * any(pool.is_partitioned for pool in rules.pools),
            text("accounting") * changes,
            text(f"types_{gres_source}") * changes,
            quotas,  # the last, because of its table
        ],
        "PREFLIGHT": [f"{text(name)}\n" for name in (prerequisites, "operator_notes", preflight)],
        "NOTES": map(text, notes),
        "SWITCH": [text("switch") * rightsized, text("switch_in_parts") * in_parts],
        "BACK": map(text, undo),
        **step_tables(bundle),
        **(_measure_texts(bundle, page_words) if page_words.measures else {}),
    }
    values = {name: text if isinstance(text, str) else "\n".join(filter(None, text)) for name, text in blocks.items()}
    only_buys = {measure.action for measure in page_words.measures} == {"buy"} and not bundle.steps
    return re.sub(r"\n{3,}", "\n\n", fill_template("purchase.md" if only_buys else "readme.md", values))


def _nodes_to_repartition(bundle: FleetBundle) -> list[str]:
    """List the nodes that a script of the bundle repartitions."""
    if not any(step.file.endswith("/change.sh") for step in bundle.steps):
        return []
    return sorted(set(bundle.rules.layout_plan().filter("changed")["node"]))


def _make_text_lookup(bundle: FleetBundle, page_words: PageText) -> Callable[[str], str]:
    """Return a function from the name of a README text to the text, in the version for the bundle's actuator if any."""
    rules, nodes, limit = bundle.rules, _nodes_to_repartition(bundle), bundle.drain.limit_s
    blocks, has_gap = read_readme_texts(), nodes and rules.requests == RIGHTSIZED
    parts, policy_script = _split_nodes(bundle) if nodes else [], bundle.path_of("policy.sh")
    full_gpus = [f"{after[FULL_GPU]:,}" for *_, after in list_change_parts(bundle)] if has_gap else []
    configs = [(pool.state.config_name, [node for node in pool.nodes if node in nodes]) for pool in rules.pools]
    values = {
        **read_controller_facts(), "NAMESPACE": GPU_OPERATOR_NAMESPACE, "CONFIG_MAP": MIG_CONFIG_MAP_NAME,
        "ACTUATOR": rules.actuator, "DATA": page_words.data,
        "NODES": format_node_list(nodes), "NODE": (nodes or [""])[0],
        "SCRIPT": bundle.path_of("change.sh") if nodes else "",
        "POLICY_SCRIPT": policy_script if nodes and policy_script in bundle.files else "",
        "GPUS": str(sum(len(rules.todays_layouts[node]) for node in nodes)),
        "PATCHED": "nodes and clusterpolicies" if nodes or bundle.path_of("policy.sh") in bundle.files else "nodes",
        "PARTS": str(len(parts)),
        "PART_GPUS": str(max((sum(len(rules.todays_layouts[node]) for node in part) for part in parts), default=0)),
        "TOTAL": str(sum(map(len, rules.todays_layouts.values()))),
        "LIMIT": "without a limit" if limit is None else f"up to {wait_text(limit / SECONDS_PER_MINUTE)}",
        "DURATION": describe_duration(bundle.index, bundle.change) if nodes else "",
        "RELEASE": bundle.release_instruction, "RELEASE_SCRIPT": bundle.path_of("release.sh"),
        "EMPTYING": page_words.emptying if nodes else "",
        "TYPE": str(getattr(bundle.gres_type, "full", bundle.gres_type)),
        "FULL": ", then ".join(dict.fromkeys(full_gpus)), "PARTED": bundle.mig_parted_path if nodes else "",
        "SWITCHED": format_node_list(find_mode_change_nodes(bundle.index)) if nodes and bundle.change.reboot_s else "",
        "STATE": bundle.path_of(f"{bundle.index['change'][0]}.before") if nodes else "",
        "UNUSED": describe_unused_slices(bundle.index, bundle.gpu_model) if nodes else "",
        "CONFIGS": ", ".join(f"`{config}` on {format_node_list(names)}" for config, names in configs if names),
    }  # fmt: skip

    def text(name: str) -> str:
        block = blocks.get(f"{name} {rules.actuator}", blocks.get(name, ""))
        # A text about what this bundle does not have is left out.
        empty = any(f"@{key}@" in block for key, value in values.items() if not value)
        return "" if empty else replace_placeholders(block.strip(), values)

    return text


def _count_instances(pools: Sequence[PoolRule]) -> Counter[str]:
    """Count the full GPUs and MIG instances that the nodes of some pools offer together, by profile."""
    counts = Counter[str]()
    for pool in pools:
        counts.update({profile: count * pool.count for profile, count in pool.offers.items()})
    return counts


def _instance_table(rules: FleetRules) -> str:
    """Render the full GPUs and MIG instances of the fleet before and after the change, by profile, as Markdown."""
    today, planned = _count_instances(rules.today), _count_instances(rules.pools)
    rows = [("instances of the fleet", "today", "after the change"), ("---",) * 3]
    rows += [(name.replace(FULL_GPU, "full GPU"), f"{today[name]:,}", f"{planned[name]:,}") for name in today | planned]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _quota_text(bundle: FleetBundle, text: Callable[[str], str]) -> str:
    """Tabulate the quotas to lower before and raise after each part of the change; `text` looks up README texts."""
    rules = bundle.rules
    if rules.actuator not in ("mig-manager", "nvidia-smi") or rules.powers_nodes_down or not rules.has_node_names:
        return ""
    rows = ["| nodes | lower before `apply` | raise after `verify` |", "| --- | --- | --- |"]
    for nodes, before, after in list_change_parts(bundle):
        lowered, raised = (
            ", ".join(f"`{resource_name(name)}` {before[name]:,} → {after[name]:,}" for name in changed)
            for changed in (before - after, after - before)
        )
        rows += [f"| {format_node_list(nodes)} | {lowered} | {raised} |"] * bool(lowered or raised)
    heading = text("quotas_set" if bundle.path_of("queues.sh") in bundle.files else "quotas_by_hand")
    return "\n".join([heading, "", *rows]) if len(rows) > 2 else ""


def _measure_texts(bundle: FleetBundle, page_words: PageText) -> dict[str, str]:
    """Render what to do, check and undo for each measure, in order."""
    # Files of no action, such as quotas, belong to the change of the fleet.
    fleet_action = next(
        (measure.action for measure in page_words.measures if measure.action in FLEET_CHANGE_ACTIONS), "release"
    )
    do, check, undo = list[str](), list[str](), list[str]()
    several = len(page_words.measures) > 1
    for number, measure in enumerate(page_words.measures, start=1):
        steps = [step for step in bundle.steps if (step.action or fleet_action) == measure.action]
        explanation, commands, checked, undone = "", [step.do for step in steps], "", ""
        if not any(commands):
            explanation, commands, checked, undone = _manual_texts(bundle, page_words, measure)
        heading = f"Action {number}: " * several
        name = f"{heading}**{measure.text}.**" if several or not measure.steps else ""
        texts = [text for text, _ in measure.steps] + [explanation] * (measure.action == "buy")
        head = " ".join(filter(None, (name, measure.condition, "" if measure.action == "buy" else explanation)))
        step_lines = [f"- {text[:1].upper()}{text[1:]}" for text in texts]
        parts = (head, "\n".join(step_lines), _fence_commands(commands))
        do.append("\n\n".join(filter(None, parts)))
        checked += _fence_commands([step.check for step in steps])
        undone += _fence_commands([step.undo for step in reversed(steps)])
        heading = f"{heading.strip()}\n\n" * several
        check += [heading + checked] if checked else []
        undo += [heading + undone] if undone else []
    sections = {"DO": do, "CHECK": check, "UNDO": undo[::-1]}
    return {key: "\n\n".join(texts) or NOTHING_TO_DO_TEXT for key, texts in sections.items()}


def _manual_texts(bundle: FleetBundle, page_words: PageText, measure: MeasureText) -> tuple[str, list[str], str, str]:
    """Describe a measure that no file carries out: reason, commands to apply it, its check, and how to undo it."""
    bundle.manual_measures.append(measure.action)
    if measure.action in FLEET_CHANGE_ACTIONS:
        reason = "; ".join(bundle.warnings)
        return f"No file here carries it out ({reason}); fix this, then run `{page_words.command}`.", [], "", ""
    commands = [command for _, command in measure.steps if command]
    words = find_measure_texts(measure.action, bundle.rules.actuator)
    checked, undone = (words[name].replace("{nodes}", "NODES") for name in ("check", "undo"))
    explanation = f"After delivery: {words['edit']}." if measure.action == "buy" else "No file carries it out; by hand:"
    return explanation, commands, checked, undone


def step_tables(bundle: Bundle) -> dict[str, str]:
    """Render the files of a bundle and the commands that apply, check and undo them, by README placeholder."""
    rows = (f"| `{step.file}` | {step.purpose} |" for step in bundle.steps)
    return {
        "FILES": "\n".join(rows) or "| none | no file needed |",
        "DO": _fence_commands([step.do for step in bundle.steps]) or NOTHING_TO_DO_TEXT,
        "CHECK": _fence_commands([step.check for step in bundle.steps]) or NOTHING_TO_DO_TEXT,
        "UNDO": _fence_commands([step.undo for step in reversed(bundle.steps)]) or NOTHING_TO_DO_TEXT,
    }


def _pool_table(rules: FleetRules, new_pools: Sequence[PoolRule]) -> str:
    """Render nodes and resources of each node pool, and nodes to buy; with power-down, also how many are powered on."""
    is_powered_down = rules.powers_nodes_down
    counts_heading = ["powered on at most", "idle nodes kept"] if is_powered_down else []
    headings = ["pool", "nodes", *counts_heading, "resources of a node"]
    lines = [headings, ["---"] * len(headings)]
    for pool in (*rules.pools, *new_pools):
        is_on_request = LAYOUT_PER_JOB in pool.layouts
        offers = (f"{count:,} × {'full GPU' if name == FULL_GPU else name}" for name, count in pool.offers.items())
        resources = "MIG instances as requested" if is_on_request else ", ".join(offers)
        counts = [str(pool.max_nodes_on), str(pool.kept)] if is_powered_down else []
        nodes = format_node_list(pool.nodes) or count_text(pool.count, "new node" if pool in new_pools else "node")
        lines.append([pool.name, nodes, *counts, resources])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fence_commands(commands: Sequence[str]) -> str:
    """Join shell commands into fenced Markdown code blocks, without repeated lines; empty without commands.

    A comment line becomes text between two blocks.
    """
    lines: list[str] = []
    for command in commands:
        # What was set before need not be set again.
        lines += [line for line in command.splitlines() if line not in lines]
    text = "```bash\n" + "\n".join(lines) + "\n```" if lines else ""
    blocks = re.sub(r"^# (.*)", r"```\n\n\1\n\n```bash", text, flags=re.M)
    return blocks.removeprefix("```bash\n```\n\n").removesuffix("\n\n```bash\n```")
