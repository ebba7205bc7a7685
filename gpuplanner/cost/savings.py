"""What each step from today's fleet to a planned calendar saves, with intervals, against a named baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from gpuplanner.cost.prices import Price
from gpuplanner.errors import SchemaError, examples, message

STEPS = (
    ("installed", "as installed, all switched on", "baseline"),
    ("whole_sized", "whole GPUs, as many as demand needs", "sizing the fleet"),
    ("static_requested", "one MIG layout, requests as made", "cutting GPUs"),
    ("static_rightsized", "one MIG layout, right-sized requests", "right-sizing requests"),
    ("dynamic_rightsized", "planned layouts, right-sized requests", "changing layouts over time"),
)
"""Policy, what it is, and what the step to it from the one before does. The first is the frozen baseline."""
WHOLE_STEPS = (
    *STEPS[:2],
    ("dynamic_rightsized", "whole GPUs, planned over time", "switching GPUs on and off"),
)
"""The same where boards cannot be cut: there are no layouts, and nothing is right-sized."""

Interval = Callable[[Sequence[float]], tuple[float, float, float]]


def savings_table(
    runs: pl.DataFrame,
    price: Price | None,
    *,
    interval: Interval,
    weeks: float,
    steps: Sequence[tuple[str, str, str]] = STEPS,
) -> pl.DataFrame:
    """Savings by step, each the mean over paired replications with its interval.

    Every policy serves the same jobs in each replication, so steps are differences within a replication and
    their sum is the saving against the baseline, exactly.

    Parameters
    ----------
    runs : polars.DataFrame
        One row per policy and replication with ``gpu_hours`` [GPU h], ``energy_kwh`` [kWh] and
        ``carbon_kg`` [kg CO2e] in the measured window; the last two null if they are not known.
    price : Price or None
        Of one GPU-hour; None: no money is stated.
    interval : callable
        From the values of all replications to mean, low and high.
    weeks : float
        Length of the measured window, to give figures per week.
    steps : sequence
        :data:`STEPS`, or :data:`WHOLE_STEPS`.

    Returns
    -------
    polars.DataFrame, shape (n_steps, 14)
        ``policy, meaning, lever``, mean ``gpu_hours`` per week, ``saved_gpu_hours`` of this step with
        ``_low`` and ``_high``, ``saved_total_gpu_hours`` against the baseline with ``_low`` and ``_high``,
        ``saved_total_fraction``, and ``saved_cost``, ``saved_energy_kwh``, ``saved_carbon_kg`` against the
        baseline, null where price or energy are not known.

    Raises
    ------
    SchemaError
        If a policy of the steps has no run.
    """
    present = set(runs["policy"])
    missing = [policy for policy, _, _ in steps if policy not in present]
    if missing:
        text = message(
            "savings", "runs of every policy", f"none of {examples(missing)}", "Simulate them all."
        )
        raise SchemaError(text)

    def values(policy: str, column: str) -> pl.Series:
        return runs.filter(policy=policy).sort("replication")[column] / weeks

    rows = []
    baseline = previous = steps[0][0]
    for policy, meaning, lever in steps:
        step = interval((values(previous, "gpu_hours") - values(policy, "gpu_hours")).to_list())
        total = interval((values(baseline, "gpu_hours") - values(policy, "gpu_hours")).to_list())
        base_hours = float(values(baseline, "gpu_hours").mean())  # type: ignore[arg-type]
        rows.append(
            {
                "policy": policy,
                "meaning": meaning,
                "lever": lever,
                "gpu_hours": float(values(policy, "gpu_hours").mean()),  # type: ignore[arg-type]
                "saved_gpu_hours": step[0],
                "saved_gpu_hours_low": step[1],
                "saved_gpu_hours_high": step[2],
                "saved_total_gpu_hours": total[0],
                "saved_total_gpu_hours_low": total[1],
                "saved_total_gpu_hours_high": total[2],
                "saved_total_fraction": total[0] / base_hours if base_hours > 0 else 0.0,
                "saved_cost": None if price is None else total[0] * price.value,
                "saved_energy_kwh": _mean_difference(values, baseline, policy, "energy_kwh"),
                "saved_carbon_kg": _mean_difference(values, baseline, policy, "carbon_kg"),
            }
        )
        previous = policy
    known = dict.fromkeys(("saved_cost", "saved_energy_kwh", "saved_carbon_kg"), pl.Float64)
    return pl.DataFrame(rows, schema_overrides=known)


def _mean_difference(
    values: Callable[[str, str], pl.Series], baseline: str, policy: str, column: str
) -> float | None:
    mean = (values(baseline, column) - values(policy, column)).mean()
    return None if mean is None else float(mean)  # type: ignore[arg-type]
