"""The blind check: how ordinary is such an outcome? Designs are drawn without reference to any target.

Thousands of designs are too many for the event simulator, so both cases are computed here in closed form for all
of them at once: list scheduling on identical instances, and everything at once. A test compares with the
simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.hardware import parse_layout
from gpuplanner.lab.claims.twenty_jobs.design import Design, Group

PERCENTILES = (5, 25, 50, 75, 95)
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")


@dataclass(frozen=True)
class Space:
    """What designs are drawn from.

    Parameters
    ----------
    designs : int
        How many are drawn.
    jobs : int
        Jobs of each.
    run_middle_min : float
        Middle of the run times [min]; all times are relative to it but for the reconfiguration.
    run_spread : tuple of float
        Half width of the run times as a share of the middle; one value for each design, drawn from this range.
    fill_from : tuple of float
        Lower end of the fill; the upper end is 1.
    most_slices : int
        Designs that need more compute slices than this are dropped.

    Notes
    -----
    The mix of needs is uniform over all mixes (Dirichlet), the rate of over-requests uniform from 0 to 1; who
    over-requests asks for any larger profile, each as likely.
    """

    designs: int = 4000
    jobs: int = 20
    run_middle_min: float = 60.0
    run_spread: tuple[float, float] = (0.0, 0.5)
    fill_from: tuple[float, float] = (0.5, 0.95)
    most_slices: int = 54


@dataclass(frozen=True)
class Drawn:
    """Designs drawn: arrays of shape (n_designs, n_jobs). Profiles are positions in :data:`PROFILES`."""

    need: np.ndarray
    asks_for: np.ndarray
    run_min: np.ndarray
    fill: np.ndarray

    def design(self, row: int) -> Design:
        """Groups of one drawn design, for the simulator."""
        pairs = zip(self.need[row].tolist(), self.asks_for[row].tolist(), strict=True)
        return Design(tuple(Group(PROFILES[need], PROFILES[asked], 1, "drawn") for need, asked in pairs))


def draw_designs(space: Space, seed: int = 0) -> Drawn:
    """Draw designs.

    Examples
    --------
    >>> drawn = draw_designs(Space(designs=10))
    >>> drawn.need.shape, bool((drawn.asks_for >= drawn.need).all())
    ((10, 20), True)
    """
    rng = np.random.default_rng(seed)
    shape = (space.designs, space.jobs)
    mix = rng.dirichlet(np.ones(len(PROFILES)), space.designs).cumsum(axis=1)
    need = (rng.random(shape)[:, :, None] > mix[:, None, :-1]).sum(axis=2)
    over = rng.random(shape) < rng.random((space.designs, 1))
    above = len(PROFILES) - 1 - need
    step = 1 + np.floor(rng.random(shape) * above).astype(np.int64)
    asks_for = np.where(over & (above > 0), need + np.minimum(step, above), need)
    spread = rng.uniform(*space.run_spread, (space.designs, 1))
    run_min = space.run_middle_min * (1 + spread * rng.uniform(-1, 1, shape))
    lowest = rng.uniform(*space.fill_from, (space.designs, 1))
    return Drawn(need, asks_for, run_min, lowest + (1 - lowest) * rng.random(shape))


def outcomes(drawn: Drawn, space: Space, design: Design | None = None) -> pl.DataFrame:
    """Both cases of every design that is kept.

    Returns
    -------
    polars.DataFrame
        ``row`` (number of the design), ``needed_slices``, ``fits`` (the needs have a place on the fleet by its
        memory slices; see Notes), ``case_1_min``, ``case_2_min``, ``time_ratio``, ``utilisation_1`` and
        ``utilisation_2`` (over provisioned slices).

    Notes
    -----
    Case 2 has one instance of the right size for each job, all at once after the reconfiguration, whether or
    not they find a place together; ``fits`` says which do. With 1g, 2g and 3g alone, instances fit on GPUs if
    their memory slices do and there are compute slices for them, as first fit shows.

    Examples
    --------
    >>> space = Space(designs=200)
    >>> found = outcomes(draw_designs(space), space)
    >>> bool((found["needed_slices"] <= 54).all()), found.height < 200
    (True, True)
    """
    design = design or Design()
    slices = np.array([design.model.profile(name).compute_slices for name in PROFILES])
    memory = np.array([design.model.profile(name).memory_slices for name in PROFILES])
    held = parse_layout(design.static_layout)
    instances = [held[name] * design.gpus for name in PROFILES]
    work = (slices[drawn.need] * drawn.fill * drawn.run_min).sum(axis=1)
    needed = slices[drawn.need].sum(axis=1)
    case_1 = np.max(
        [_list_scheduled(drawn.run_min, drawn.asks_for == p, n) for p, n in enumerate(instances)], axis=0
    )
    case_2 = design.reconfigure_min + drawn.run_min.max(axis=1)
    provisioned = int(slices @ instances)
    return pl.DataFrame(
        {
            "row": np.arange(len(work)),
            "needed_slices": needed,
            "fits": memory[drawn.need].sum(axis=1) <= design.gpus * design.model.memory_slices,
            "case_1_min": case_1,
            "case_2_min": case_2,
            "time_ratio": case_2 / case_1,
            "utilisation_1": work / (provisioned * case_1),
            "utilisation_2": work / (needed * case_2),
        }
    ).filter(pl.col("needed_slices") <= space.most_slices)


def percentiles(found: pl.DataFrame) -> pl.DataFrame:
    """Percentiles of what matters, one row each.

    Examples
    --------
    >>> even = pl.DataFrame({"time_ratio": [0.0, 1.0], "utilisation_1": 0.5, "utilisation_2": 0.5})
    >>> percentiles(even).row(0)
    ('time_ratio', 0.05, 0.25, 0.5, 0.75, 0.95)
    """
    names = ("time_ratio", "utilisation_1", "utilisation_2")
    rows = [[name, *np.percentile(found[name].to_numpy(), PERCENTILES).tolist()] for name in names]
    return pl.DataFrame(rows, schema=["measure", *(f"p{p}" for p in PERCENTILES)], orient="row")


def _list_scheduled(run_min: np.ndarray, mine: np.ndarray, instances: int) -> np.ndarray:
    """When the last of some jobs ends, taken in order by the instance that is free first; shape (n_designs,)."""
    free_at = np.zeros((len(run_min), instances))
    rows = np.arange(len(run_min))
    for job in range(run_min.shape[1]):
        first = free_at.argmin(axis=1)
        free_at[rows, first] += np.where(mine[:, job], run_min[:, job], 0.0)
    last: np.ndarray = free_at.max(axis=1)
    return last
