"""Size inference services together: sizes, batches, processes, counts and layouts for the fewest GPUs.

Each service has measured profiles (:mod:`~gpuplanner.services.profiles`), a rate and a latency limit.
The plan uses as few GPUs as any can and, on so few, as few compute slices; both come with a proven bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.schemas.check import check
from gpuplanner.services.demands import service_demands
from gpuplanner.services.first_fit import sized_alone
from gpuplanner.services.options import choices_for, least
from gpuplanner.services.plan import ServicePlan, numbered
from gpuplanner.services.profiles import BOARD, ServiceProfiles
from gpuplanner.services.program import BoundedSizing, sized_jointly
from gpuplanner.solving.effort import Effort

LATENCY_SHARE = 0.45
"""Share of a latency limit that a batch may take, by the rule of ParvaGPU: a half, since a request that comes
just after a batch has begun waits for its end and then for its own, less 10 % for the spread of latencies."""

METHODS = ("joint", "alone")
"""``joint``: all services together, by integer program. ``alone``: each by itself, packed first fit."""


def plan_services(
    profiles: pl.DataFrame,
    rates: Mapping[str, float],
    latencies: Mapping[str, float],
    board: GpuModel | str = BOARD,
    *,
    latency_share: float = LATENCY_SHARE,
    method: str = "joint",
    time_limit_s: float | None = None,
    work_limit: int | None = None,
    seed: int = 0,
    solver: str = "highs",
) -> ServicePlan:
    """Size services for the fewest GPUs, then for the fewest compute slices.

    Parameters
    ----------
    profiles : polars.DataFrame
        A table :class:`~gpuplanner.services.profiles.ServiceProfiles`, as
        :func:`~gpuplanner.services.profiles.read_service_profiles` gives it. A size is planned on the
        profile with the least memory that has so many compute slices.
    rates : mapping of str to float
        Requests of each service [1/s].
    latencies : mapping of str to float
        Longest time from a request to its answer, by service [ms].
    board : GpuModel or str
        Board of every GPU, on which the profiles were measured.
    latency_share : float
        Share of the limit that a batch may take, above 0 and at most 1; see :data:`LATENCY_SHARE`. At 1 the
        measured latency of a batch is taken for what a user sees, as if no request ever waited.
    method : {"joint", "alone"}
        See :data:`METHODS`.
    time_limit_s : float, optional
        Longest search [s].
    work_limit : int, optional
        Most units of work; see :func:`gpuplanner.planner.plan`.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Which solver.

    Returns
    -------
    ServicePlan
        If a limit is reached, or at Ctrl-C, the best plan so far with the bounds so far.

    Raises
    ------
    ScenarioError
        If a rate, limit or argument makes no sense.
    SchemaError
        If `profiles` is no such table.
    GeometryError
        If the board is unknown or has no instance of a size in the table.
    InfeasiblePlanError
        If a service has no measured setting that answers in time.
    MissingDependencyError
        If the solver is not installed.

    References
    ----------
    Lee et al., ParvaGPU, SC 2024; MunQ-Lee/ParvaGPU_SC24, src/configurator.c
    (``target_ltc < (float)(slo_ltc/2 * 0.9)``).

    Examples
    --------
    >>> columns = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
    >>> rows = [("bert", 1, 8, 1, 100.0, 0.08), ("bert", 2, 8, 2, 250.0, 0.09), ("bert", 2, 32, 1, 300.0, 0.2)]
    >>> profiles = pl.DataFrame(rows, schema=columns, orient="row")
    >>> plan = plan_services(profiles, {"bert": 340.0}, {"bert": 200.0})
    >>> plan.gpus, plan.slices, plan.proven, plan.layouts
    (1, 3, True, ('2g.20gb:1,1g.10gb:1',))
    >>> [(segment.profile, segment.batch, segment.instances) for segment in plan.segments]
    [('1g.10gb', 8, 1), ('2g.20gb', 8, 1)]
    """
    began = time.perf_counter()
    effort = Effort.begin(time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit)
    _require_arguments(latency_share, method)
    board = as_board(board)
    profiles = check(profiles, ServiceProfiles, where="service profiles")
    demands = service_demands(rates, latencies, profiles["service"].unique().to_list())
    choices = choices_for(profiles, demands, board, latency_share)
    floor = least(choices)
    start = sized_alone(choices)
    sized = BoundedSizing(start, floor.gpus, floor.slices)
    if method == "joint":
        sized = sized_jointly(choices, floor, start, effort)
    segments, layouts = numbered(choices, sized.sizing)
    return ServicePlan(
        board=board,
        latency_share=latency_share,
        gpus=len(layouts),
        bound=sized.gpus,
        slices=choices.slices(sized.sizing.instances),
        slices_bound=sized.slices,
        segments=segments,
        layouts=layouts,
        seconds=time.perf_counter() - began,
    )


def _require_arguments(latency_share: float, method: str) -> None:
    if isinstance(latency_share, bool) or not 0 < latency_share <= 1:
        text = message("latency_share", "a number above 0, at most 1", repr(latency_share), "Choose one.")
        raise ScenarioError(text)
    if method not in METHODS:
        text = message("plan_services: method", f"one of {', '.join(METHODS)}", repr(method), "Choose one.")
        raise ScenarioError(text)
