"""Recommendations on clusters whose remedy is planted, and how they read growth and load."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from gpuplanner.decision.capacity_measures import Recommendation, SizedPool, find_raised_limits, scale_units
from gpuplanner.decision.capacity_measures import recommend as recommend_with
from gpuplanner.decision.explained_waits import explain_waits
from gpuplanner.decision.fewest_gpus_and_best_layout import (
    build_layout_pools,
    explain_kept_gpus,
    find_best_layout,
    find_smallest_units,
)
from gpuplanner.decision.headroom_and_growth import (
    date_exhaustion,
    fit_growth_per_week,
    measure_headroom,
    sum_weekly_work,
)
from gpuplanner.decision.recommendation import _list_layouts_to_buy, _list_nodes_to_buy
from gpuplanner.decision.requested_jobs import (
    AS_TODAY,
    RIGHTSIZED,
    JobReplayInputs,
    classify_job_sizes,
    count_layout_instances,
)
from gpuplanner.decision.wait_curve import (
    WaitModel,
    WaitTarget,
    join_pools,
    scale_load,
    simulate_curve_points,
    split_by_profiles,
    wait_limits,
)
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.simulator.scheduling_rules import QuotaGroup, Sharing
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests, simulate_shared_requests
from gpuplanner.usage.current_nodes import TodaysNodes

DAY, HOUR = 86_400.0, 3_600.0
BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
STATED = WaitTarget(stated=True)
FLAT = fit_growth_per_week(np.array([100.0, 104, 97, 101, 99, 102, 98, 100]))


def recommend(model: WaitModel, target: WaitTarget) -> Recommendation:
    """The recommendation where the submitted work does not grow."""
    return recommend_with(model, target, FLAT)


def planted_model(
    load: float,
    *,
    nodes: int = 4,
    spread: bool = False,
    peak_gpus: int | None = None,
    mig: tuple[int, int] | None = None,
    days: int = 28,
    weekly: float = 0.0,
    starts_assumed: bool = False,
) -> WaitModel:
    """The model of jobs of some hours that ran on nodes of 8 GPUs at so many GPUs in the mean.

    Jobs have 1 GPU, and one of ten 8. With ``peak_gpus`` the one team may use no more at once. With ``mig`` the jobs
    request 1g.10gb, and so many nodes of full GPUs and of seven instances on each GPU are there.
    """
    rng = np.random.default_rng(5)
    instances = 7 if mig else 1
    run_h = 8.0 if mig else 1.0
    count = int(load * instances * days * 24 / run_h / (1 if mig else 1.7))
    quantile = rng.random(count) if not weekly else np.log1p(rng.random(count) * np.expm1(weekly * days / 7))
    submit = np.sort(quantile / (weekly * days / 7 if weekly else 1.0) * days * DAY)
    run = rng.exponential(run_h * HOUR, count) + 60
    total = np.where(mig is None, np.where(rng.random(count) < 0.1, 8, 1), 1).astype(np.int64)
    profiles = ("gpu", "1g.10gb") if mig else ("gpu",)
    requests = NodeRequests(
        submit, submit, run, 2 * run, np.full(count, len(profiles) - 1), total, np.ones(count, np.int64)
    )
    capacity = np.array([[8, 0]] * mig[0] + [[0, 56]] * mig[1] if mig else [[8]] * nodes)
    size = len(capacity)
    fleet = NodeFleet(
        profiles,
        np.full(size, 8),
        capacity[:, None, :],
        np.zeros(size, np.int64),
        np.array([1.0, 1 / 7])[: len(profiles)],
    )
    placement = "spread" if spread else "best"
    sharing = Sharing(np.zeros(count, np.int64), np.zeros(count, np.int64), (QuotaGroup(peak_gpus),))
    outcome = (
        simulate_shared_requests(requests, fleet, sharing, placement=placement)
        if peak_gpus
        else simulate_requests(requests, fleet, placement=placement)
    )
    pins = outcome.allocations.unique("request").sort("request")["node"].to_list()
    start = np.where(outcome.start_s < days * DAY, outcome.start_s, np.nan)
    end = np.where(start + run <= days * DAY, start + run, np.nan)
    layout = [("gpu",) * 8 if row[0] else ("1g.10gb:7",) * 8 for row in capacity.tolist()]
    today = TodaysNodes(
        tuple(f"n{node}" for node in range(size)), (8,) * size, tuple(layout), inferred=False, named=True
    )
    jobs = pl.DataFrame({"tenant": ["vision"] * count, "run_s": run, "sm_activity": [0.1] * count})
    jobs = jobs.with_columns(partition=pl.lit(None, pl.String), tier=pl.lit(None, pl.String))
    asked = JobReplayInputs(
        jobs, today, fleet, load_gpu_model("H100-80GB-SXM5"), {AS_TODAY: requests}, start,
        end, [[node] for node in pins], starts_assumed, BEGIN, BEGIN + timedelta(days=days), np.zeros(count, bool),
    )  # fmt: skip
    waits = explain_waits(asked)
    return WaitModel(asked, waits, *classify_job_sizes(asked, waits.is_evaluated))


@pytest.fixture(scope="module")
def full() -> WaitModel:
    """A fleet of two nodes on which the jobs wait."""
    return planted_model(13.0, nodes=2, days=14)


@pytest.fixture(scope="module")
def grown(full) -> Recommendation:
    """What is recommended for it."""
    return recommend(full, STATED)


def test_a_half_empty_fleet_is_released_within_the_limits():
    model = planted_model(4.0, nodes=8, days=21)
    found = recommend(model, WaitTarget())
    assert found.action == "release"
    assert found.gpus == found.measures[0].gpus < found.fleet_gpus == 64
    assert all(row.recommended_p95_minutes <= row.limit_minutes for row in found.service)
    # One node less than that does not do.
    _, limit = wait_limits(model, WaitTarget())
    (pool,) = split_by_profiles(model.inputs.fleet)
    below = replace(pool, today=1, resize=lambda count: pool.resize(min(count, found.gpus // 8 - 1)))
    assert find_smallest_units(model, [below], limit) is None


def test_the_fewest_nodes_are_those_that_a_check_of_every_number_finds(full):
    _, limit = wait_limits(full, WaitTarget())
    (pool,) = full.pools

    def meets(count: int) -> bool:
        waits = np.array([full.percentiles(pool.resize(count), row) for row in range(len(limit))])
        missed = waits > limit + 1.0
        return not missed[0].any() and (missed[1:].sum(axis=0) <= 4).all()

    assert find_smallest_units(replace(full), [pool], limit) == [next(filter(meets, range(1, 9)))]


def with_services(model: WaitModel) -> WaitModel:
    """The model where five jobs of 8 GPUs are services, which began before the record and run on."""
    old, requests = model.inputs, model.inputs.requests
    service = np.flatnonzero(requests.total == 8)[:5]
    start, end, run = old.start_s.copy(), old.end_s.copy(), requests.run_s.copy()
    start[service], end[service], run[service] = -HOUR, np.nan, 15 * DAY
    submit = np.where(np.isin(np.arange(len(run)), service), -HOUR, requests.submit_s)
    requests = replace(requests, ready_s=submit, submit_s=submit, run_s=run, limit_s=2 * run)
    standing = np.isin(np.arange(len(run)), service)
    asked = replace(old, start_s=start, end_s=end, is_service=standing, views={AS_TODAY: requests})
    waits = explain_waits(asked)
    return WaitModel(asked, waits, *classify_job_sizes(asked, waits.is_evaluated))


def test_services_keep_their_gpus():
    """Nobody minds to wait."""
    changed = with_services(planted_model(1.0, nodes=8, days=14))
    assert changed.inputs.service_gpus == 40
    patient = np.full((5, len(changed.sizes)), np.inf)
    assert find_smallest_units(changed, changed.pools, patient) == [5]


GROWING = fit_growth_per_week(100 * 1.10 ** np.arange(8) * np.array([1.01, 0.99] * 4))


@pytest.mark.parametrize("growth", [FLAT, GROWING])
def test_the_reason_to_keep_all_gpus_is_the_one_that_binds(growth):
    """Fewer GPUs that meet the limits today are kept only for growth; the sentence gives their number."""
    model = planted_model(1.5, nodes=4, days=21)
    _, limit = wait_limits(model, WaitTarget())
    needed_today = 8 * find_smallest_units(model, model.pools, limit)[0]
    found = recommend_with(model, WaitTarget(), growth)
    assert needed_today < found.fleet_gpus == 32
    assert (found.action == "keep") == (growth is GROWING)
    if growth is GROWING:
        assert found.reason.startswith(f"{needed_today} GPUs would meet the wait limits today")
        assert "90 days" in found.reason
        assert "9.9 % per week" in found.reason


def test_a_single_node_is_kept_as_only_whole_nodes_are_released():
    found = recommend_with(planted_model(0.5, nodes=1, days=21), WaitTarget(), GROWING)
    assert (found.action, found.fleet_gpus) == ("keep", 8)
    assert "whole nodes" in found.reason
    assert "wait" not in found.reason


def test_services_keep_all_nodes_by_their_own_name():
    model = with_services(planted_model(1.0, nodes=5, days=14))
    reason = explain_kept_gpus(model, np.full((5, len(model.sizes)), np.inf), FLAT, 90, 1.0)
    assert "services keep those that they use" in reason


def test_a_full_fleet_grows_until_each_size_meets_the_target(grown):
    assert grown.action == "buy"
    assert grown.gpus > grown.fleet_gpus
    assert grown.waiting_hours_per_gpu_hour > 0
    large = grown.service[-1]
    assert large.observed_p95_minutes > 30 >= large.recommended_p95_minutes
    assert grown.headroom.headroom.factor >= 1  # of the GPUs with those to buy


@pytest.mark.long
def test_a_purchase_that_ends_little_waiting_needs_a_stated_target():
    model = planted_model(10.0, nodes=3)
    stated, default = recommend(model, STATED), recommend(model, WaitTarget())
    assert stated.action == "buy"
    assert stated.waiting_hours_per_gpu_hour < 0.1
    assert default.action == "keep"
    assert "8" in default.reason
    assert default.gpus == default.fleet_gpus


@pytest.mark.long
def test_spread_jobs_are_packed_before_anything_is_bought():
    found = recommend(planted_model(6.0, spread=True), STATED)
    assert next(measure.action for measure in found.measures) == "pack"
    assert found.gpus <= found.fleet_gpus


@pytest.mark.long
def test_a_limit_is_raised_by_its_number():
    found = recommend(planted_model(9.0, peak_gpus=12), STATED)
    assert found.action == "raise_limit"
    assert found.measures[0].text == "Raise the limit of vision from 12 to 32 GPUs"


def test_a_raised_limit_is_the_most_that_a_tenant_holds_without_one():
    model = planted_model(9.0, peak_gpus=12)
    free = model.without_limits()
    [raised] = find_raised_limits(model, free)
    start_s = free.waits.arrival_s + free.arrival_shift_s(0) + free.replay_waits(free.inputs.fleet)
    mine = (free.inputs.jobs["tenant"] == raised.tenant).to_numpy()
    end_s, gpus = start_s + free.inputs.requests.run_s, free.inputs.gpus_by_job()
    peak = max(gpus[mine & (start_s <= at) & (at < end_s)].sum() for at in start_s[mine])
    assert (raised.current_gpus, raised.raised_gpus) == (12, peak)


def test_full_gpus_are_partitioned_for_those_who_wait():
    model = planted_model(10.0, mig=(3, 1))
    assert [pool.profiles for pool in split_by_profiles(model.inputs.fleet)] == [(0,), (1,)]
    found = recommend(model, STATED)
    first, second = found.measures
    assert (first.action, first.gpus, first.condition) == ("repartition", 32, None)
    assert (second.action, second.condition) == ("release", "after repartition")
    assert 10 < second.gpus == found.gpus < 32


@pytest.mark.long
def test_jobs_of_low_measured_use_run_on_smaller_profiles_before_gpus_are_bought(full, grown):
    fleet, requests = full.inputs.fleet, full.inputs.requests
    capacity = np.concatenate([fleet.capacity, np.zeros_like(fleet.capacity)], axis=2)
    fleet = replace(fleet, profiles=("gpu", "1g.10gb"), capacity=capacity, weights=np.array([1.0, 1 / 7]))
    small = replace(requests, profile=(requests.total == 1) * 1)
    asked = replace(full.inputs, fleet=fleet, views=full.inputs.views | {RIGHTSIZED: small})
    found = recommend(replace(full, inputs=asked), STATED)
    assert found.measures[0].action == "rightsize"
    assert found.gpus < grown.gpus
    unmeasured = replace(asked, jobs=asked.jobs.with_columns(sm_activity=pl.lit(None, pl.Float64)))
    assert recommend(replace(full, inputs=unmeasured), STATED).action == "buy"


def test_without_observed_waits_nothing_is_recommended():
    found = recommend(planted_model(4.0, starts_assumed=True), STATED)
    assert (found.action, found.measures, found.gpus) == ("none", (), 32)
    assert found.reason


@pytest.mark.long
def test_the_same_record_gives_the_same_recommendation():
    first, second = (recommend(planted_model(10.0, nodes=3, days=7), STATED) for _ in range(2))
    assert (first.measures, first.service, first.exhaustion) == (second.measures, second.service, second.exhaustion)


def test_nodes_to_buy_have_the_layouts_that_were_simulated():
    layouts = (("gpu", "3g.20gb:2"), ("gpu", "3g.20gb:2"), ("1g.5gb:7", "1g.5gb:7"), ("1g.5gb:7",))
    profiles = ("gpu", "3g.20gb", "1g.5gb")
    capacity = np.array([[count_layout_instances(node, profiles)] for node in layouts])
    fleet = NodeFleet(profiles, np.array([2, 2, 2, 1]), capacity, np.zeros(4, int), np.array([1, 1 / 2, 1 / 7]))
    pools, nodes = split_by_profiles(fleet), SimpleNamespace(layouts=layouts, total=7)
    inputs = SimpleNamespace(nodes=nodes, node_gpus=2)
    bought = _list_nodes_to_buy(inputs, SimpleNamespace(action="buy", pools=pools, units=[3, 4]))
    assert bought == [layouts[0], layouts[2], layouts[2]]
    simulated = join_pools(pools, [3, 4])
    offered = [count_layout_instances(node, profiles) for node in (*layouts, *bought)]
    assert simulated.capacity.sum(axis=(0, 1)).tolist() == np.sum(offered, axis=0).tolist()
    # Pools of GPUs: today's nodes get the MIG layouts first.
    mixed = [SizedPool((0,), 7, NodeFleet.of_full_gpus, movable=True, layouts=(("gpu", 2),)),
             SizedPool((1,), 7, NodeFleet.of_full_gpus, movable=True, layouts=(("3g.20gb:2", 8),))]  # fmt: skip
    advice = SimpleNamespace(action="repartition", pools=mixed, units=[3, 8], gpus=11)
    assert _list_nodes_to_buy(inputs, advice) == [["3g.20gb:2", "gpu"], ["gpu", "gpu"]]
    parts = list(_list_layouts_to_buy([("gpu", "3g.20gb:2"), ("gpu", "gpu")]))
    assert [(part.layout, part.gpus, part.by_node, part.new_nodes) for part in parts] == [
        ("full", 3, (1, 2), 2), ("3g.20gb:2", 1, (1, 0), 1),
    ]  # fmt: skip


def test_partitioned_fleets_of_the_curve_are_whole_nodes():
    pool = SizedPool((0,), 64, NodeFleet.of_full_gpus, movable=True)
    model = SimpleNamespace(inputs=SimpleNamespace(node_gpus=8))
    found = SimpleNamespace(units=[20, 44], pools=[pool, pool], model=model)
    assert scale_units(found, 1.0) == [20, 44]
    assert [sum(scale_units(found, factor)) for factor in np.linspace(0.5, 1.0, 5)] == [32, 40, 48, 56, 64]
    assert scale_units(found, 0.85) == scale_units(found, 0.9) == scale_units(found, 56 / 64)
    # Larger ones have those GPUs and whole nodes of the profile that lacks most.
    assert [scale_units(found, factor) for factor in (1.125, 1.25, 1.375)] == [[20, 52], [28, 52], [28, 60]]
    found.pools = [replace(pool, movable=False)] * 2  # nodes, not GPUs
    assert scale_units(found, 0.9) == [18, 40]


def test_waits_of_jobs_that_never_start_are_missing(full):
    points = simulate_curve_points(full, "today", [NodeFleet.of_full_gpus([4, 4]), full.inputs.fleet])
    at = {(point.gpus, point.job_size): point for point in points}
    large, small = (name for name in full.size_names[::-1])
    never = at[8, large]
    values = (never.p95_minutes, never.low, never.high, never.mean_minutes, never.completion_minutes)
    assert (*values, never.completion_low, never.completion_high) == (None,) * 7
    assert at[8, small].gpu_hours == pytest.approx(168 * 8)
    todays = at[full.inputs.fleet.gpus.sum(), large]
    assert todays.low <= todays.high < np.inf
    assert todays.mean_minutes > 0


def test_less_load_is_a_part_of_more():
    rng = np.random.default_rng(1)
    arrival, fixed = np.sort(rng.uniform(0, 28 * DAY, 1000)), np.arange(1000) < 10
    rows, same = scale_load(arrival, fixed, 1.0, 28 * DAY)
    assert rows.tolist() == list(range(1000))
    assert same.tolist() == arrival.tolist()
    previous: set = set()
    for load in (0.3, 0.8, 1.3, 2.6):
        rows, times = scale_load(arrival, fixed, load, 28 * DAY)
        assert len(rows) == pytest.approx(10 + 990 * load, rel=0.05)
        assert (times >= 0).all()
        assert (times <= 28 * DAY).all()
        pairs = set(zip(rows.tolist(), times.tolist(), strict=True))
        assert previous <= pairs
        previous = pairs


@pytest.mark.long
def test_growth_of_the_submitted_work_is_found_and_dates_the_exhaustion():
    model = planted_model(14.0, nodes=5, days=56, weekly=0.05)
    asked = model.inputs
    submit = pl.Series(asked.requests.submit_s * 1e6, dtype=pl.Float64).cast(pl.Int64).cast(pl.Duration("us"))
    jobs = asked.jobs.with_columns(submit_time=pl.lit(BEGIN) + submit, gpus=pl.Series(asked.gpus_by_job()))
    growth = fit_growth_per_week(sum_weekly_work(jobs, BEGIN, asked.end))
    assert growth.weekly.low < np.expm1(0.05) < growth.weekly.high
    assert growth.slope > 0
    measured = measure_headroom(model, asked.fleet, WaitTarget(), growth)
    one = measured.headroom
    assert one.low <= one.factor <= one.high
    assert one.factor > 1
    end = date(2026, 7, 27)
    found = date_exhaustion(growth, measured, end, 56, 90)
    day, order = (date.fromisoformat(text) for text in (found.date, found.order_by))
    weeks = np.log(one.factor) / growth.slope - 4
    assert abs((day - end).days - 7 * max(weeks, 0)) < 14
    assert day - order == timedelta(days=90)
    due = recommend_with(model, STATED, growth)
    assert due.action == "keep"
    assert due.exhaustion.order_by < end.isoformat()
    assert due.order_gpus > 0
    assert due.order_gpus % 8 == 0


def test_growth_that_is_not_shown_dates_nothing():
    assert FLAT.slope == 0
    assert FLAT.weekly.low < 0 < FLAT.weekly.high
    assert date_exhaustion(FLAT, None, date(2026, 7, 27), 56, 90).date is None
    few = fit_growth_per_week(np.ones(5))
    assert date_exhaustion(few, None, date(2026, 7, 27), 35, 90).reason == few.weekly.reason


def test_a_profile_that_fits_once_on_a_gpu_shares_it(full):
    fleet, requests = full.inputs.fleet, full.inputs.requests
    capacity = np.concatenate([fleet.capacity, np.zeros((len(fleet.gpus), 1, 2), np.int64)], axis=2)
    weights = np.array([1.0, 3 / 7, 4 / 7])
    fleet = replace(fleet, profiles=("gpu", "3g.40gb", "4g.40gb"), capacity=capacity, weights=weights)
    profile = np.where(requests.total == 1, 1 + np.arange(len(requests.total)) % 2, 0)
    inputs = replace(full.inputs, fleet=fleet, views={AS_TODAY: replace(requests, profile=profile)})
    model = replace(full, inputs=inputs)
    layout = find_best_layout(model)
    mixed, uniform = layout["4g.40gb:1,3g.40gb:1"], layout["3g.40gb:2"]
    assert mixed > 0
    assert "4g.40gb:1" not in layout
    pools = build_layout_pools(model, layout)
    assert [pool.profiles for pool in pools] == [(0,), (2, 1)]
    offered = join_pools(pools, [pool.expected for pool in pools]).capacity.sum(axis=(0, 1)).tolist()
    assert offered == [layout["gpu"], mixed + 2 * uniform, mixed]
    # A smaller pool gives up what holds two of the same first, a larger one gets more of it.
    assert pools[1].resize(mixed).capacity.sum(axis=(0, 1)).tolist() == [0, mixed, mixed]
    assert pools[1].resize(mixed + 3).capacity.sum(axis=(0, 1)).tolist() == [0, mixed + 6, mixed]
