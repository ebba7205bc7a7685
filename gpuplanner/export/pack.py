"""The pack: a page that says what to do, and beside it one folder with the files of the path that performs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuplanner.catalog.loader import measure_words
from gpuplanner.errors import GeometryError
from gpuplanner.export.bundle_files import (
    NAMESPACE,
    Making,
    MeasureWords,
    Pack,
    PageWords,
    Step,
    add_release,
    filled,
    lines_of,
)
from gpuplanner.export.fleet_rules import BY_JOBS, FleetRules
from gpuplanner.export.index import (change_index, to_index_text)
from gpuplanner.export.kubernetes import to_change_scripts, to_config_map
from gpuplanner.export.mig_parted import named_configs, to_mig_parted
from gpuplanner.export.slurm import to_slurm_files
from gpuplanner.export.states import checked_plan
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import as_board
from gpuplanner.hardware.seconds import minutes
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.simulate.rules import (Drain)
from gpuplanner.units import counted

PAGE = "README.md"
NOTHING = "Nothing has to be done."
CHANGES_FLEET = ("repartition", "rightsize", "power_down", "autoscale")
"""Measures that files perform: those that belong to no other measure."""
NOT_TODAY = "The dates follow the end of the record, not today; a change may begin on any later day."
















def to_pack(
    rules: FleetRules,
    told: PageWords,
    change: ChangeCost,
    drain: Drain,
    *,
    gres_type: str | None = None,
) -> Pack:
    """The files of what was decided, and the page that says how to use them."""
    making = Making(rules, change.board or as_board(rules.board), change, drain, gres_type)
    pack = Pack()
    not_winner = told.not_winner
    if not rules.named and rules.path != "autoscaler":
        pack.warnings.append("the nodes have no names: nothing is written that would have to name them")
    try:
        _write(making, pack)
    except GeometryError as error:
        pack.warnings.append(f"left out of {rules.path}: {error}")
    if pack.warnings and not_winner is None:
        not_winner = "; ".join(pack.warnings)
    pack.files[PAGE] = to_page(making, pack, told, not_winner)
    return pack


def _write(making: Making, pack: Pack) -> None:
    """The files of a path: of nodes that stay as they are cut, of pools that come and go, of nodes that jobs cut."""
    from gpuplanner.export.pools.pools_kubernetes import on_demand, pools
    from gpuplanner.export.pools.pools_slurm import power_saving

    rules = making.rules
    recipe = {"slurm": _on_slurm, "parted": _by_parted}.get(rules.path, _by_operator)
    if any(BY_JOBS in pool.layouts for pool in rules.pools):
        recipe = on_demand
        if rules.path != "dra":
            pack.warnings.append(
                f"nothing that is shipped cuts GPUs when a job asks on path {rules.path}; take path dra"
            )
            return
    elif rules.path == "autoscaler" or (rules.comes_and_goes and rules.path != "slurm"):
        recipe = pools
    elif rules.comes_and_goes:
        recipe = power_saving
    if rules.named or recipe is pools:
        recipe(making, pack)
    if recipe in (_by_operator, pools):
        from gpuplanner.export.pools.queues import add_queues

        add_queues(making, pack)


def _by_operator(making: Making, pack: Pack) -> None:
    """The MIG manager cuts what a label names, or a script makes the instances of one GPU; it keeps the order."""
    rules, plan = making.rules, making.rules.layout_plan()
    by_gpu = rules.path == "nvml"
    if making.board.profiles and not by_gpu:
        place = making.place("configmap.yaml")
        text = to_config_map(plan, making.board)
        says = "one configuration for each way that a node is cut; mig-parted reads it"
        pack.add(text, Step(place, says, f"kubectl apply -f {place}", "", f"kubectl delete -f {place}"))
        what = "lets the MIG manager read it; keeps what was set before"
        pack.add(making.script("policy.sh"), Step.script(making.place("policy.sh"), what))
    if making.board.profiles:
        drain = replace(making.drain, scope="gpu") if by_gpu else making.drain
        scripts = to_change_scripts(plan, making.board, change=making.change, drain=drain)
        _add_index(making, pack)
        emptied = "empties GPUs one by one beside those at work" if by_gpu else "empties nodes"
        for name, text in scripts.items():
            pack.add(
                text, Step.script(making.place(name), f"{emptied}, cuts them, compares, lets them work again")
            )
    add_release(making, pack, rules.released, "empties the nodes of `released.txt`, which are not needed")




def _by_parted(making: Making, pack: Pack) -> None:
    """mig-parted on each node, by ssh."""
    rules, plan = making.rules, making.rules.layout_plan()
    if making.board.profiles:
        pack.add(
            to_mig_parted(plan, making.board),
            Step(making.place("mig-parted.yaml"), "one configuration for each way that a node is cut"),
        )
        last = plan["slot_start"].max()
        held = named_configs(checked_plan(plan, making.board), last)  # type: ignore[arg-type]
        changed = set(plan.filter("changed")["node"])
        of = {node: name for name, (_, nodes) in held.items() for node in nodes if node in changed}
        if of:
            steps = "\n".join(f"config[{node}]={name}" for node, name in sorted(of.items()))
            text = making.script("change_parted.sh", STEPS=steps, NODES=" ".join(sorted(of)))
            what = "waits for the GPU work of a node to end, cuts it, compares; keeps what was there"
            _add_index(making, pack)
            pack.add(text, Step.script(making.place("change.sh"), what))
    if rules.released:
        what = "nodes that are not needed: keep work away from them, then give them back or power them down"
        pack.add(lines_of(rules.released), Step(making.place("released.txt"), what))


def _on_slurm(making: Making, pack: Pack) -> None:
    """Lines of slurm.conf, and a script that keeps the order."""
    rules, plan = making.rules, making.rules.layout_plan()
    what = "drains the nodes of `released.txt`, which are not needed"
    if not plan["changed"].any():
        # To drain nodes, neither the type of their GPUs nor the lines of the others are needed.
        add_release(making, pack, rules.released, what)
        return
    files = to_slurm_files(
        plan, making.board, gres_type=making.gres_type, change=making.change, drain=making.drain
    )
    scripts = [name for name in files if name.startswith("change-")]
    if making.board.profiles:
        yaml = making.place("mig-parted.yaml")
        changed = making.place("changed.txt")
        pack.files[changed] = lines_of(sorted(set(plan.filter("changed")["node"])))
        copy = (
            "export PARTED=/etc/gpuplanner-mig-parted.yaml\n"
            f'for node in $(cat {changed}); do scp {yaml} "$node:$PARTED"; done'
        )
        pack.add(to_mig_parted(plan, making.board),
                 Step(yaml, "one configuration for each way that a node is cut; goes to the nodes of `changed.txt`",
                      copy))  # fmt: skip
    # Of the lines of before and after a change those of after.
    unused = {name for name in files if name.startswith("slurm-")} - {
        f"slurm-{one[7:-3]}.conf" for one in scripts
    }
    left_out = {*scripts, *unused}
    pack.files |= {making.place(name): text for name, text in files.items() if name not in left_out}
    says = "for every node with NVML in its Slurm; the others get what `static-gres.sh` prints there"
    pack.steps.append(Step(making.place("gres.conf"), says))
    _add_index(making, pack)
    for name in scripts:
        does = "drains nodes, waits, cuts them, puts their Gres into slurm.conf, compares, resumes"
        before = "export PARTED=/etc/gpuplanner-mig-parted.yaml\n"
        place = making.place(name)
        pack.add(files[name], Step(place, does, f"bash {place} apply", f"bash {place} verify",
                                   f"{before}bash {place} rollback"))  # fmt: skip
    add_release(making, pack, rules.released, what)


def _add_index(making: Making, pack: Pack) -> None:
    index = change_index(making.rules.layout_plan(), making.board, change=making.change, drain=making.drain)
    if index.height:
        place = making.place("changes.md")
        text = to_index_text(index, making.board, making.change)
        pack.add(f"{text}\n{NOT_TODAY}\n", Step(place, "what changes on which GPU, to read"))




def to_page(making: Making, pack: Pack, told: PageWords, not_winner: str | None) -> str:
    """The page that is read first."""
    rules = making.rules
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
        "TITLE": told.sentence
        if not_winner is None
        else f"These are not the files of the decision: {not_winner}",
        "PATH": rules.path,
        "POLICY": told.policy,
        "BOARD": rules.board,
        "BEGINS": (rules.begins or "")[:16].replace("T", " ") + " UTC",
        "WHERE": where,
        "SENTENCE": told.sentence
        if not_winner is not None
        else "As the title says; the page of the report shows why.",
        "POOLS": "\n".join(_pool_line(rules, number) for number in range(len(rules.pools))),
        "MEANS": told.means,
        "TOUCHED": "\n".join([*(f"- {line}" for line in told.touched), *_durations(making, pack)]),
        **page_tables(pack),
        **(_by_measure(making, pack, told) if told.measures else {}),
    }
    return filled("readme.md", values)


def _by_measure(making: Making, pack: Pack, told: PageWords) -> dict[str, str]:
    """What to do, check and undo for each measure, in order."""
    other = next((one.action for one in told.measures if one.action in CHANGES_FLEET), "")
    do, check, undo = list[str](), list[str](), list[str]()
    for number, one in enumerate(told.measures, start=1):
        steps = [step for step in pack.steps if (step.action or other) == one.action]
        by, commands, checked, undone = "", [step.do for step in steps], "", ""
        if not any(commands):
            by, commands, checked, undone = _by_hand(making, pack, told, one)
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


def _by_hand(
    making: Making, pack: Pack, told: PageWords, one: MeasureWords
) -> tuple[str, list[str], str, str]:
    """Why no file performs a measure, the commands that do, and how it is checked and undone."""
    pack.by_hand.append(one.action)
    if one.action in CHANGES_FLEET:
        why = "; ".join(pack.warnings)
        return f"No file here performs it ({why}); `{told.command}` writes it once that is fixed.", [], "", ""
    commands = [command for _, command in one.steps if command]
    if one.action == "buy":
        return "No file performs it.", commands, "", ""
    words = measure_words(one.action, making.rules.path)
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
    names = (
        f"{pool.nodes[0]} to {pool.nodes[-1]} ({pool.count})"
        if len(pool.nodes) > 8
        else ", ".join(pool.nodes)
    )
    most, kept = (f"at most {pool.most}", str(pool.kept)) if rules.comes_and_goes else ("all", "all")
    return f"| {pool.name} | {names or pool.count} | {most} | {kept} | {offers} |"


def _durations(making: Making, pack: Pack) -> list[str]:
    """How long changes take, and what is left to do by hand."""
    rules, found = making.rules, list[str]()
    changed = rules.layout_plan().filter("changed")["node"].n_unique() if rules.named else 0
    if changed and any("change" in step.file for step in pack.steps):
        emptied = (
            "cut GPU by GPU while the rest of each stays at work: a GPU that goes takes no new work from the beginning"
            if rules.path == "nvml"
            else "emptied and cut: each takes no new work from the beginning"
        )
        found.append(
            f"- {counted(changed, 'node')} {'is' if changed == 1 else 'are'} {emptied}, is waited for at most "
            f"{minutes(float(making.limit_s))}, and then takes {making.change.words()}. Jobs that run there end by "
            "themselves; none is ended. A script that gave a node up ends with 75: run the same words again. It waits "
            "in the foreground: begin where it outlives your session (tmux, screen)."
        )
        if rules.path != "parted":
            found.append(
                "- `check` instead of `apply` says what would stop a change of layout, and changes nothing."
            )
    if making.place("power.sh") in pack.files:
        found.append(
            f"- Before anything else put what switches your machines into `{making.place('power.sh')}`: as it is, it "
            "only logs, nodes stay on, and nothing is saved."
        )
    if making.place("released.txt") in pack.files:
        then = "give them back to whom they belong to" if rules.returned else "power them down"
        found.append(
            f"- Once the nodes of `{making.place('released.txt')}` are empty, {then} by your own means: the saving "
            "counts on it, and no file here can do it."
        )
    return found


def _fence(commands: Sequence[str]) -> str:
    lines: list[str] = []
    for command in commands:
        # What was set before need not be set again.
        lines += [line for line in command.splitlines() if line not in lines]
    return "```bash\n" + "\n".join(lines) + "\n```" if lines else ""
