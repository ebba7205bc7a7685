"""Commands that compare policies, decisions and teams: ``compare`` and ``fairness``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gpuplanner.cli.application import (
    Json,
    Overwrite,
    Quiet,
    ScenarioOptions,
    ScenarioPath,
    app,
    cell_text,
    chart_option,
    echo,
    notify,
    require_outputs,
    show,
    show_frame,
    with_fields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from gpuplanner.core.scenario import Scenario
    from gpuplanner.decision.comparison_record import Comparison, PolicyRow
    from gpuplanner.decision.quota_and_placement_comparison import RulesComparison
    from gpuplanner.decision.quota_recommendation import QuotaAdvice
    from gpuplanner.decision.team_fairness import Fairness
    from gpuplanner.usage.planning_history import FleetPools


@app.command()
@with_fields(
    "target_wait_minutes", "max_added_wait_minutes", "policies", "actuator", "projects", "quotas",
    "quotas_to_try", "gpu_mtbf_hours", "gang_slowdowns", "gpu_model", "seed"
)  # fmt: skip
def compare(
    scenario_path: ScenarioPath,
    further_paths: Annotated[
        list[str] | None,
        Argument(metavar="[OTHER]...", help="Further scenarios, or folders of reports, to show beside the first."),
    ] = None,
    *,
    options: ScenarioOptions,
    chart: Annotated[
        Path | None,
        chart_option("Write a chart of GPU-hours and added queue wait: .html (with all tables) or .svg (chart alone)."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare operating policies by GPU-hours and queue wait.

    Each policy is fitted on earlier days and evaluated on later ones. --quotas,
    --quotas-to-try and --gpu-mtbf-hours add the queue wait of each team under
    them; --gang-slowdowns adds the GPU-hours lost by placement. GPU models are
    compared separately. The report prices a purchase. With further scenarios,
    shows the decision on each side by side, and differences to the first on the
    same jobs with 80 % intervals.

    Example: gpuplanner compare build/mine --max-added-wait-minutes 10
    """
    from gpuplanner.decision.gpu_model_decisions import ComparedFleet
    from gpuplanner.usage.planning_history import split_into_pools

    if further_paths:
        if chart is not None:
            raise typer.BadParameter("--chart takes one SCENARIO: leave out --chart or the further scenarios")
        _show_side_by_side([scenario_path, *further_paths], options, as_json=as_json, quiet=quiet)
        return
    require_outputs(chart, inputs=[scenario_path])
    scenario = options.make_scenario(scenario_path)
    pools = split_into_pools(scenario)
    comparisons = compare_pools(pools, quiet=quiet)
    if chart is not None:
        from gpuplanner.report.policy_and_team_sections import write_policy_page

        write_policy_page(comparisons, chart, title=f"Equal service: {scenario.name}", locale=scenario.number_locale)
        notify(f"written: {chart}")
    effects = {name: _optional_effects(pool_scenario) for name, pool_scenario in pools.pools.items()}
    if as_json:
        pool_texts = {name: pool.to_dict() | _effects_to_plain(effects[name]) for name, pool in comparisons.items()}
        fleet = ComparedFleet(comparisons).to_dict() | {"pools": pool_texts}
        show(fleet if pools.several else next(iter(pool_texts.values())), as_json=True)
        return
    show_pools(comparisons, quiet=quiet, effects=effects)


def _show_side_by_side(paths: Sequence[str], options: ScenarioOptions, *, as_json: bool, quiet: bool) -> None:
    """Print the decisions on several scenarios side by side, and their differences to the first.

    Parameters
    ----------
    paths : sequence of str
        Arguments SCENARIO. A report folder is read as it was written, unless options change its scenario.
    options : ScenarioOptions
        Fields set for every scenario.
    as_json, quiet : bool
        Print JSON; print no progress messages.
    """
    from gpuplanner.decision.comparison_record import compare_policies
    from gpuplanner.decision.study import open_study, tabulate_decisions
    from gpuplanner.usage.planning_history import split_into_pools

    fleets: list[dict[str, tuple[Scenario, Comparison]]] = []
    for path in paths:
        notify(f"comparing policies for {path} ...", quiet=quiet)
        if not (options.fields or options.assignments) and (Path(path) / "study.json").is_file():
            study = open_study(path)
            fleets.append({str(study.headline.gpu_model): (study.scenario, study.comparison)})
            model, boards = study.headline.gpu_model, study.headline.boards
            if boards.count(" × ") > 1:
                notify(f"{path}: a report decides on {model} alone, of {boards}; give {path}/data to compare each")
        else:
            pools = split_into_pools(options.make_scenario(path)).pools
            fleets.append({name: (scenario, compare_policies(scenario)) for name, scenario in pools.items()})
    for path, fleet in zip(paths, fleets, strict=True):
        for name, (_, comparison) in fleet.items():
            if comparison.decision.action == "none":
                notify(f"{path}, {name}: no recommendation: {comparison.decision.reason}")
    names = list(dict.fromkeys(name for fleet in fleets for name in fleet))
    if all(len(fleet) == 1 for fleet in fleets):
        # Clusters of one GPU model each stand side by side, whatever their GPU model.
        tables = {"": tabulate_decisions([study for fleet in fleets for study in fleet.values()])}
    else:
        tables = {name: tabulate_decisions([fleet[name] for fleet in fleets if name in fleet]) for name in names}
    if as_json:
        values = {name: {"decisions": rows, "differences": differences} for name, (rows, differences) in tables.items()}
        show(values.get("", {"pools": values}), as_json=True)
        return
    for name, (decisions, differences) in tables.items():
        if name:
            _print_pool_heading(name)
        _show_decisions(decisions, differences)


def _show_decisions(decisions: pl.DataFrame, differences: pl.DataFrame) -> None:
    """Print decisions side by side, and their differences to the first, as ``tabulate_decisions`` returns them."""
    import polars as pl

    from gpuplanner.decision.study import arrange_decisions

    show_frame(arrange_decisions(decisions, cell_text), title="Decisions side by side")
    texts = [_difference_text(*row) for row in differences.select("difference_minutes", "low", "high").iter_rows()]
    if texts:
        shown = differences.with_columns(text=pl.Series(texts))
        table = shown.pivot("study", index=["job_size", "measure"], values="text")
        show_frame(table, title="Difference to the first on the same jobs (min, 80 % interval)")
    else:
        echo("No differences: the scenarios are about other jobs, or no queue wait could be simulated.")


def _difference_text(difference: float, low: float | None, high: float | None) -> str:
    """Format a difference with its interval; where the interval holds 0, the options cannot be told apart.

    Examples
    --------
    >>> _difference_text(4.25, 1.0, 9.0), _difference_text(4.25, -1.0, 9.0)
    ('+4.2 (+1.0 to +9.0)', 'not distinguishable (-1.0 to +9.0)')
    """
    if low is None or high is None:
        return f"{difference:+.1f} (no interval)"
    text = f"{difference:+.1f}" if low > 0 or high < 0 else "not distinguishable"
    return f"{text} ({low:+.1f} to {high:+.1f})"


def _optional_effects(scenario: Scenario) -> dict[str, Any]:
    """Simulate the effects of quotas, GPU failures and job placement that a scenario states; keyed by effect."""
    from gpuplanner.decision.quota_and_placement_comparison import (
        compare_placements,
        compare_stated_rules,
        states_sharing_rules,
    )

    effects: dict[str, Any] = {"sharing": compare_stated_rules(scenario)} if states_sharing_rules(scenario) else {}
    if scenario.gang_slowdowns is not None:
        effects["placements"] = compare_placements(scenario)
    return effects


def _effects_to_plain(effects: Mapping[str, Any]) -> dict[str, object]:
    """Convert simulated effects to values that :func:`show` prints: results to dicts; the table of placements stays."""
    return {name: part if name == "placements" else part.to_dict() for name, part in effects.items()}


def _show_effects(effects: Mapping[str, Any]) -> None:
    """Print the effects of quotas, GPU failures and job placement."""
    if "sharing" in effects:
        rules_comparison: RulesComparison = effects["sharing"]
        echo("")
        subject = f"{rules_comparison.after} instead of {rules_comparison.before}"
        title = f"{subject}: GPU-hours a week waited and lost ({rules_comparison.blocks})"
        show_frame(rules_comparison.teams.select(SHOWN_SHARING_COLUMNS), title=title)
        echo(rules_comparison.verdict_sentence, *rules_comparison.notes)
    if "placements" in effects:
        echo("")
        show_frame(effects["placements"], title="Jobs on several nodes by placement, losses a week (80 % interval)")


def compare_pools(fleet: FleetPools, *, quiet: bool) -> dict[str, Comparison]:
    """Compare the policies of each GPU pool, with a progress message for each.

    Parameters
    ----------
    fleet : FleetPools
        Scenario of each pool.
    quiet : bool
        Print no progress messages.

    Returns
    -------
    dict of str to Comparison
        Comparison by pool.
    """
    from gpuplanner.decision.comparison_record import compare_policies

    comparisons = {}
    for name, pool_scenario in fleet.pools.items():
        notify(f"comparing policies for {name} ...", quiet=quiet)
        comparisons[name] = compare_policies(pool_scenario)
    return comparisons


def show_pools(
    comparisons: Mapping[str, Comparison], *, quiet: bool, effects: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Print the comparison of each GPU pool, and a summary sentence for all pools.

    Parameters
    ----------
    comparisons : mapping of str to Comparison
        Comparison by pool.
    quiet : bool
        Print no messages to stderr.
    effects : mapping, optional
        Effects of quotas, failures and job placement by pool; None: print neither these nor announced projects.
    """
    from gpuplanner.decision.gpu_model_decisions import ComparedFleet

    several = len(comparisons) > 1
    for name, comparison in comparisons.items():
        if several or effects is None:
            _print_pool_heading(name)
        show_comparison(comparison, quiet=quiet)
        if effects is not None:
            echo(*(project.sentence for project in comparison.projects))
            _show_effects(effects[name])
    if several:
        echo("", ComparedFleet(comparisons).decision_text)


def _print_pool_heading(pool: str) -> None:
    """Print the name of a GPU pool, underlined."""
    echo(f"\n{pool}\n{'=' * len(pool)}")


def show_comparison(comparison: Comparison, *, quiet: bool) -> None:
    """Print a comparison: the table of policies, the recommendation, next steps and confidence."""
    import polars as pl

    from gpuplanner.decision.comparison_record import describe_windows, format_limit, format_wait_target

    if comparison.rows:
        rows = [_policy_row(decision, comparison) for decision in comparison.rows]
        show_frame(pl.DataFrame(rows, infer_schema_length=None), title=format_wait_target(comparison))
        echo(format_limit(comparison))
    decision = comparison.decision
    echo(decision.sentence)
    for number, step in enumerate(decision.next_steps, start=1):
        echo(f"  {number}  {step.text}")
    echo(*decision.confidence)
    if quiet:
        return
    notify(*(f"missing: {missing.what}: {missing.command}" for missing in decision.missing))
    notify(describe_windows(comparison))


SHOWN_SHARING_COLUMNS = (
    "team", "jobs", "wait_before_min", "wait_after_min", "waited_before", "waited_after", "change", "change_low",
    "change_high", "never_before", "never_after", "verdict", "lost_before", "lost_after", "stops_after",
    "failures_after",
)  # fmt: skip
"""Printed columns of the comparison of each team's queue wait before and after a change of quotas or preemption."""


def _policy_row(policy_row: PolicyRow, comparison: Comparison) -> dict[str, object]:
    """Make the printed row of a policy; a star marks the recommended policy."""
    from gpuplanner.decision.decision_types import TODAY

    reason = policy_row.reason or ""
    if policy_row.gpu_hours is not None and not policy_row.meets_target and not reason:
        reason = "above the maximum added wait"
    meets_target = "yes" if policy_row.meets_target else f"no: {reason}"
    return {
        "policy": ("* " if policy_row.policy == comparison.recommended_policy else "  ") + policy_row.policy,
        "GPU-hours a week": policy_row.gpu_hours_promised,
        "peak GPUs": policy_row.peak_gpus,
        "added wait p95 (min)": policy_row.added_wait_p95_minutes,
        "jobs delayed (share)": policy_row.delayed_share,
        "power-ups a week": policy_row.power_ups_per_week,
        "within added-wait limit": "baseline" if policy_row.policy == TODAY else meets_target,
    }


@app.command()
@with_fields("quotas", "gpu_model", "seed")
def fairness(
    scenario_path: ScenarioPath,
    options: ScenarioOptions,
    chart: Annotated[
        Path | None,
        chart_option(
            "Write a chart of allocated, lent and missing GPU-hours by team: .html (with all tables) or .svg."
        ),
    ] = None,
    ahead: Annotated[
        bool,
        Option(
            "--ahead",
            help="Also recommend quotas for the risk that each team accepts and checkpoint intervals, and show when "
            "budgets are used up.",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report each team's quota, fair share, usage and queue waits.

    Shows what each team lent and borrowed, its shortfall, the causes of its waits
    and its next step. GPU models are reported separately.

    Example: gpuplanner fairness build/mine/data --quotas quotas.yaml
    """
    from gpuplanner.decision.team_fairness import assess_fairness as compute_fairness
    from gpuplanner.usage.planning_history import split_into_pools

    require_outputs(chart, inputs=[scenario_path])
    scenario = options.make_scenario(scenario_path)
    pools = split_into_pools(scenario)
    fairness_by_pool = {name: compute_fairness(pool_scenario) for name, pool_scenario in pools.pools.items()}
    advice: dict[str, QuotaAdvice] = {}
    if ahead:
        from gpuplanner.decision.quota_recommendation import advise_quotas

        advice = {name: advise_quotas(pool_scenario) for name, pool_scenario in pools.pools.items()}
    if chart is not None:
        from gpuplanner.report.policy_and_team_sections import write_team_page

        title = f"Teams: {scenario.name}"
        write_team_page(fairness_by_pool, chart, advice_by_pool=advice, title=title, locale=scenario.number_locale)
        notify(f"written: {chart}")
    if as_json:
        pool_texts = {name: pool_fairness.to_dict() for name, pool_fairness in fairness_by_pool.items()}
        for name, pool_advice in advice.items():
            pool_texts[name]["ahead"] = pool_advice.to_dict()
        show({"pools": pool_texts} if pools.several else next(iter(pool_texts.values())), as_json=True)
        return
    for name, pool_fairness in fairness_by_pool.items():
        if pools.several:
            _print_pool_heading(name)
        _show_teams(pool_fairness)
        notify(f"quotas: {pool_fairness.rules.source}; {pool_fairness.basis}", *pool_fairness.notes, quiet=quiet)
        for title, table in advice[name].titled_tables if ahead else ():
            show_frame(table, title=title)


def _show_teams(fairness: Fairness) -> None:
    """Print quota, usage, lent and borrowed GPU-hours of each team."""
    import polars as pl

    from gpuplanner.usage.fair_share import NO_TENANT_LABEL

    echo(fairness.shortfall_sentence)
    table = fairness.teams.select(
        "tenant", pl.col("entitled_gpus").alias("quota or fair share [GPUs]"), "allocated_gpu_hours", "lent_gpu_hours",
        "borrowed_gpu_hours", "shortfall_gpu_hours",
        (100 * pl.col("fair_share_received")).alias("fair share received (%)"),
        pl.col("starved_hours").alias("no GPU while jobs waited [h]"),
        pl.col("mean_slowdown").alias("mean slowdown against a dedicated share"),
        (100 * pl.col("slower_share")).alias("jobs slower than on a dedicated share (%)"),
    )  # fmt: skip
    show_frame(table, title="Quota and usage by team")
    own_quota = fairness.borrowed.filter(borrower=NO_TENANT_LABEL, lender=NO_TENANT_LABEL)
    between = fairness.borrowed.join(own_quota, on=["borrower", "lender"], how="anti", maintain_order="left")
    title = f"GPU-hours borrowed between teams ('{NO_TENANT_LABEL}': unallocated quota)"
    show_frame(between.sort("gpu_hours", descending=True, maintain_order=True), title=title)
    echo(*(f"{row['tenant']}: {row['why']} {row['next_step']}" for row in fairness.teams.iter_rows(named=True)))
