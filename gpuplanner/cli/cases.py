"""``gpuplanner simulate --case``: the seeded cases, as tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner.cli.app import say
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    import polars as pl

CASES = ("twenty-jobs", "harder")
SEEDS = {"twenty-jobs": 100, "harder": 10}
"""Seeds where none are named: enough for a narrow interval in some ten seconds."""


def simulate_case(name: str, seeds: int | None, first_seed: int, *, as_json: bool, quiet: bool) -> None:
    """Run a case over seeds and print what it came to.

    Raises
    ------
    ScenarioError
        If there is no such case.
    """
    from gpuplanner.errors import ScenarioError
    from gpuplanner.names import resolve

    case = resolve(name, CASES, what="case", error=ScenarioError)
    numbers = range(first_seed, first_seed + (seeds or SEEDS[case]))
    parts = _twenty_jobs(numbers) if case == "twenty-jobs" else _harder(numbers)
    if as_json:
        head: dict[str, Any] = {"case": case, "seeds": len(numbers), "first_seed": first_seed}
        show(head | {title: frame.to_dicts() for title, frame in parts.items()}, as_json=True)
        return
    for title, frame in parts.items():
        show_frame(frame, as_json=False, title=title.replace("_", " "))
    if not quiet:
        say(f"{len(numbers)} seeds from {first_seed}; intervals are those of means, at 95 %")
        if case == "twenty-jobs":
            from gpuplanner.claims.twenty_jobs import CONFIGURATIONS_TRIED

            text = f"the design is calibrated to the reported figures: {CONFIGURATIONS_TRIED} configurations were tried"
            say(f"{text}, so agreement is no evidence")


def _twenty_jobs(seeds: range) -> dict[str, pl.DataFrame]:
    from gpuplanner.claims.twenty_jobs import (
        CORNERS,
        comparison,
        decompose,
        outcomes,
        percentiles,
        replicate,
        summarise,
    )
    from gpuplanner.claims.twenty_jobs.space import Space, draw_designs

    rows = replicate(CORNERS, seeds)
    measures = (
        "completion_min", "mean_jct_min", "utilisation_provisioned", "utilisation_server",
        "utilisation_instances", "provisioned_slices",
    )  # fmt: skip
    return {
        "comparison": comparison(rows),
        "policies": summarise(rows, measures),
        "decomposition": decompose(rows, measures[:3]),
        "design_space": percentiles(outcomes(draw_designs(Space()), Space())),
    }


def _harder(seeds: range) -> dict[str, pl.DataFrame]:
    from gpuplanner.claims.twenty_jobs import differences, replicate_harder, summarise
    from gpuplanner.claims.twenty_jobs.compare_harder import BOUND, FORECAST, GREEDY, MEASURES, PERFECT

    rows = replicate_harder(seeds)
    comparable = rows.filter(rows["policy"].is_in([GREEDY, FORECAST, PERFECT, BOUND]))
    return {
        "policies": summarise(rows, MEASURES),
        "against_greedy": differences(comparable, GREEDY, MEASURES[:4]),
    }
