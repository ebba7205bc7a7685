"""Idle GPUs that are released: theory of queues with setup, an oracle in plain Python, and what stays on."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError
from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Calendar, Fleet, OnDemand, Release, Rules, simulate

BOARD = "H100-80GB-SXM5"
DRIVER = Rules("strict", change=ChangeCost.of(BOARD, "nvml", instance_s=1.0))


def play(jobs, policy, nodes=1, per_node=8, rules=DRIVER, until_s=0.0):
    return simulate(jobs, Fleet(BOARD, nodes, per_node), policy, rules, policy="p", until_s=until_s)


def hours(run):
    """GPU-hours of each state."""
    time_h = (pl.col("end_s") - pl.col("start_s")).sum() / 3600
    return dict(run.states.group_by("state").agg(time_h).rows())


@pytest.fixture(scope="module")
def poisson():
    """Jobs of a queue M/M/8 at 80 %."""
    rng, count = np.random.default_rng(3), 4000
    submit = np.cumsum(rng.exponential(100 / 6.4, count))
    return pl.DataFrame(
        {
            "job_id": np.arange(count).astype(str),
            "tenant": "t",
            "submit_s": submit,
            "run_s": rng.exponential(100.0, count),
            "gpus": 1,
            "profile": "gpu",
        }
    )


class TestTheory:
    """M/M/k with setup: Gandhi, Harchol-Balter and Adan, Server farms with setup costs, 2010."""

    def test_without_setup_it_waits_like_a_fleet_that_is_always_on_and_is_on_only_to_work(self, poisson):
        always = play(poisson, Calendar.constant({"gpu": 8}))
        released = play(poisson, OnDemand(release=Release("gpu", 0.0, 0.0)))
        assert released.outcomes["wait_s"].to_list() == always.outcomes["wait_s"].to_list()
        assert hours(released)["on"] == pytest.approx(poisson["run_s"].sum() / 3600)

    def test_what_never_goes_is_always_on(self, poisson):
        always, kept = (
            play(poisson, policy) for policy in (OnDemand(), OnDemand(release=Release("gpu", 1e9, 60.0)))
        )
        assert kept.outcomes.equals(always.outcomes)
        assert kept.states.equals(always.states)

    def test_more_setup_waits_longer_and_no_job_longer_than_the_setup_more(self, poisson):
        runs = [play(poisson, OnDemand(release=Release("gpu", 0.0, lead))) for lead in (0.0, 20.0, 60.0)]
        waits = [run.outcomes["wait_s"].to_numpy() for run in runs]
        assert waits[0].mean() < waits[1].mean() < waits[2].mean()
        assert (waits[1] - waits[0]).max() <= 20.0 + 1e-6
        assert (waits[2] - waits[0]).max() <= 60.0 + 1e-6

    def test_longer_idling_costs_hours_and_saves_waits(self, poisson):
        runs = [play(poisson, OnDemand(release=Release("gpu", idle, 60.0))) for idle in (0.0, 60.0, 600.0)]
        off = [hours(run)["off"] for run in runs]
        waits = [run.outcomes["wait_s"].mean() for run in runs]
        assert off[0] > off[1] > off[2]
        assert waits[0] > waits[1] > waits[2]


def by_hand(rows, gpus, idle_s, lead_s, kept):
    """Start of each job, and GPU-hours off, of jobs on one GPU each: the lowest idle GPU, the highest one goes."""
    busy, boots, idle, off = {}, {}, dict.fromkeys(range(gpus), 0.0), {}
    queue, starts, off_s, todo, now = [], {}, 0.0, sorted(rows), 0.0
    while True:
        instants = [*busy.values(), *boots.values(), *(row[0] for row in todo[:1])]
        instants += [since + idle_s for since in idle.values() if since + idle_s > now]
        if not instants or not (busy or boots or queue or todo):
            return starts, off_s + sum(now - since for since in off.values())
        last = not (busy or queue or todo)
        if last:
            return starts, off_s + sum(now - since for since in off.values())
        now = min(instants)
        for gpu in [gpu for gpu, end in busy.items() if end <= now]:
            idle[gpu] = now
            del busy[gpu]
        for gpu in [gpu for gpu, end in boots.items() if end <= now]:
            idle[gpu] = now
            del boots[gpu]
        while todo and todo[0][0] <= now:
            queue.append(todo.pop(0))
        while queue and idle:
            _, job, run_s = queue.pop(0)
            gpu = min(idle)
            del idle[gpu]
            busy[gpu], starts[job] = now + run_s, now
        while len(boots) < len(queue) and off:
            boots[min(off)] = now + lead_s
            off_s += now - off.pop(min(off))
        while len(idle) + max(len(boots) - len(queue), 0) < kept and off:
            boots[min(off)] = now + lead_s
            off_s += now - off.pop(min(off))
        ripe = sorted(gpu for gpu, since in idle.items() if since + idle_s <= now)
        while ripe and len(idle) + max(len(boots) - len(queue), 0) > kept:
            off[ripe[-1]] = now
            del idle[ripe.pop()]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=14),
    st.integers(1, 4),
    st.sampled_from([1, 4, 11]),
    st.sampled_from([1, 3, 9]),
    st.integers(0, 2),
)
def test_it_is_what_plain_python_says(rows, gpus, idle, lead, kept):
    rows = [(float(at), number, run / 1.0) for number, (at, run) in enumerate(sorted(rows))]
    # Times that never fall together, so that ties do not matter.
    rows = [(at + number / 97.0, number, run + number / 89.0) for at, number, run in rows]
    jobs = pl.DataFrame(rows, schema=["submit_s", "job_id", "run_s"], orient="row").with_columns(
        pl.col("job_id").cast(pl.String), tenant=pl.lit("t"), gpus=1, profile=pl.lit("gpu")
    )
    policy = OnDemand(release=Release("gpu", idle + 1 / 83.0, lead + 1 / 79.0), reserve={"gpu": kept})
    run = play(jobs, policy, per_node=gpus)
    starts, off_s = by_hand(rows, gpus, idle + 1 / 83.0, lead + 1 / 79.0, kept)
    assert run.outcomes["first_start"].to_list() == pytest.approx([starts[number] for _, number, _ in rows])
    assert hours(run).get("off", 0.0) * 3600 == pytest.approx(off_s)


def on_at(run, at):
    return run.states.filter(pl.col("start_s") <= at, pl.col("end_s") > at, pl.col("state") != "off").height


def test_a_commitment_stays_on_from_when_on_it_holds(jobs_of):
    jobs = jobs_of(("a", 0, 10, 1, "gpu"), ("z", 990, 10, 1, "gpu"))
    policy = OnDemand(release=Release("gpu", 5.0, 20.0), floor=[(0, 2), (300, 6), (600, 1)])
    run = play(jobs, policy)
    assert [on_at(run, at) for at in (4, 16, 299, 300, 599, 601, 989)] == [8, 2, 2, 6, 6, 1, 1]


def test_nodes_go_and_come_as_a_whole_and_work_is_gathered_on_few(jobs_of):
    jobs = jobs_of(*[(f"j{k}", 100 * k, 90, 1, "1g.10gb") for k in range(10)], ("gang", 2000, 10, 8, "gpu"))
    run = play(jobs, OnDemand(release=Release("node", 50.0, 30.0)), nodes=3, rules=DRIVER)
    assert run.outcomes["node"].to_list()[:10] == [0] * 10
    assert [on_at(run, at) for at in (10, 60, 999, 1100)] == [24, 8, 8, 0]
    assert run.outcomes["first_start"][-1] == 2030


def test_a_gang_comes_to_one_node_even_if_gpus_go_one_by_one(jobs_of):
    # On either node one GPU is in use; the gang of three needs three on one node, and asks for no more.
    jobs = jobs_of(("a", 0, 900, 3, "gpu"), ("b", 0, 900, 2, "gpu"), ("gang", 500, 10, 2, "gpu"))
    run = play(jobs, OnDemand(release=Release("gpu", 50.0, 30.0)), nodes=2, per_node=4)
    assert run.outcomes.filter(job_id="gang").select("first_start", "node").row(0) == (530, 1)
    assert on_at(run, 499) == 5
    assert on_at(run, 520) == 7


def test_a_reserve_of_slices_is_room_on_gpus_in_use_or_a_gpu_more(jobs_of):
    jobs = jobs_of(("a", 0, 1000, 1, "1g.10gb"), ("b", 0, 500, 6, "gpu"), ("c", 600, 1, 1, "1g.10gb"))
    release = Release("gpu", 50.0, 30.0)
    for kept, on in (
        ({"1g.10gb": 6}, 1),
        ({"1g.10gb": 7}, 2),
        ({"3g.40gb": 2}, 2),
        ({"gpu": 3, "1g.10gb": 9}, 5),
    ):
        assert on_at(play(jobs, OnDemand(release=release, reserve=kept)), 900) == on


def test_jobs_ask_for_as_many_as_they_fill(jobs_of):
    # Nine instances of one slice need two GPUs.
    jobs = jobs_of(("first", 0, 1, 1, "gpu"), *[(f"j{k}", 500, 50, 1, "1g.10gb") for k in range(9)])
    run = play(jobs, OnDemand(release=Release("gpu", 20.0, 30.0)))
    assert on_at(run, 499) == 0
    assert on_at(run, 510) == 2
    assert run.outcomes["first_start"].max() <= 530 + 8


def test_never_cut_it_is_a_fleet_of_whole_gpus(jobs_of):
    jobs = jobs_of(("a", 0, 10, 1, "gpu"), ("b", 5, 10, 1, "1g.10gb"))
    with pytest.raises(ScenarioError, match="no slot from its submission on offers"):
        play(jobs, OnDemand(cut=False))
    assert play(jobs[:1], OnDemand(cut=False)).states["layout"].unique().to_list() == ["gpu"]


class TestFairness:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10**6), st.sampled_from(["strict", "easy"]), st.sampled_from(["nvml", "operator"]))
    def test_no_job_waits_longer_than_a_drain_after_it_has_waited_as_long_as_one(self, seed, queue, path):
        # Small jobs of at most 1000 s never stop coming; as many whole GPUs are asked for as there are, at any time.
        rng, count, longest = np.random.default_rng(seed), 1500, 1000.0
        small = pl.DataFrame(
            {
                "submit_s": np.sort(rng.random(count) * 40_000.0),
                "run_s": rng.random(count) * longest,
                "gpus": np.ones(count, np.int64),
                "profile": rng.choice(["1g.10gb", "2g.20gb", "3g.40gb"], count),
            }
        )
        whole = pl.DataFrame(
            {
                "submit_s": 10_000.0 + 100.0 * rng.random(3),
                "run_s": 50.0,
                "gpus": rng.integers(1, 3, 3),
                "profile": "gpu",
            }
        )
        jobs = (
            pl.concat([small, whole])
            .with_row_index("job_id")
            .with_columns(pl.col("job_id").cast(pl.String), tenant=pl.lit("t"), limit_s=pl.lit(longest))
        )
        rules = Rules(queue, change=ChangeCost.of(BOARD, path, change_s=0.0, instance_s=0.0))
        run = play(jobs, OnDemand(drain_s=200.0), nodes=2, per_node=3, rules=rules)
        waits = run.outcomes.filter(pl.col("profile") == "gpu")["wait_s"]
        assert waits.max() <= 4 * longest  # those before it may need a drain each

    def test_whole_gpus_do_not_starve_beside_slices(self):
        # A week of jobs of which most share GPUs: whole GPUs waited for days while slices waited for minutes.
        rng, count = np.random.default_rng(2), 2000
        profile = rng.choice(["1g.10gb", "2g.20gb", "3g.40gb", "gpu"], count, p=[0.5, 0.25, 0.17, 0.08])
        run_s = np.exp(1.5 * rng.standard_normal(count)) * np.where(profile == "gpu", 1600.0, 2920.0)
        jobs = pl.DataFrame(
            {
                "job_id": np.arange(count).astype(str),
                "tenant": "t",
                "submit_s": np.sort(rng.random(count) * 604_800.0),
                "run_s": run_s,
                "gpus": np.where(profile == "gpu", rng.choice([1, 1, 1, 2, 4], count), 1),
                "profile": profile,
                "limit_s": 2.0 * run_s,
            }
        )
        run = play(jobs, OnDemand(), nodes=2, rules=Rules(change=ChangeCost.of(BOARD, "nvml")))
        waits = pl.col("wait_s") / 60
        by_size = run.outcomes.group_by(whole=pl.col("profile") == "gpu").agg(
            mean=waits.mean(), most=waits.max()
        )
        slices, whole = by_size.sort("whole").drop("whole").rows(named=True)
        # One drain at a time for all of them: 405 and 5890 minutes.
        assert whole["mean"] < 120
        assert whole["most"] < 1000
        assert slices["mean"] < 5
