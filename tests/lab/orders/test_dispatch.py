"""Fleets of several types: HAS against an oracle and special cases, first fit against the compiled one, the ILP."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.lab.gangs import GangRules, schedule, schedule_by
from gpuplanner.lab.orders.mixed.dispatch import dispatch
from gpuplanner.lab.orders.mixed.machines import heterogeneity_aware, opportunistic
from gpuplanner.lab.orders.mixed.mixed import GpuType
from gpuplanner.simulate import Fleet, Preemption

BOARD = "H100-80GB-SXM5"


def tables(rows):
    """Jobs and plans of rows (submit_s, class, [(gpus, tp, memory_gib, run_s)]); users pick the last plan's GPUs."""
    jobs = [(str(number), "t", float(submit), kind) for number, (submit, kind, _) in enumerate(rows)]
    plans = [(str(number), *plan) for number, (_, _, ways) in enumerate(rows) for plan in ways]
    return (
        pl.DataFrame(jobs, schema=["job_id", "tenant", "submit_s", "job_class"], orient="row"),
        pl.DataFrame(
            plans,
            schema={
                "job_id": pl.String, "gpus": pl.Int32, "tp": pl.Int32, "memory_gib": pl.Float64, "run_s": pl.Float64,
            },
            orient="row",
        ),
    )  # fmt: skip


@st.composite
def workloads(draw, kinds=3):
    fleet = tuple(
        GpuType(
            f"type{number}", draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.sampled_from([8.0, 16.0, 32.0])),
            draw(st.sampled_from([0.5, 1.0, 2.0])), {"vision": draw(st.sampled_from([0.25, 1.0, 4.0]))},
        )
        for number in range(draw(st.integers(1, kinds)))
    )  # fmt: skip
    most, largest = max(kind.gpus for kind in fleet), max(kind.memory_gib for kind in fleet)
    sure = max(fleet, key=lambda kind: kind.memory_gib).gpus
    plan = st.tuples(
        st.integers(1, most),
        st.integers(1, 3),
        st.sampled_from([4.0, 12.0, 24.0]),
        st.integers(1, 30).map(float),
    )
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from([None, "vision"]), st.lists(plan, max_size=3)),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    return fleet, [(submit, kind, [*ways, (sure, 1, largest, 10.0)]) for submit, kind, ways in rows]


class Oracle:
    """The sentences of HAS on plain lists, and a queue that is gone through whenever anything happens."""

    def __init__(self, fleet, rows):
        self.fleet, self.rows = fleet, rows
        self.idle = [[kind.gpus_per_node] * kind.nodes for kind in fleet]

    def decide(self, kind_of_job, ways):
        for gpus, tp, memory, run_s in sorted(ways, key=lambda plan: plan[:2]):
            able = [number for number, kind in enumerate(self.fleet) if kind.memory_gib >= memory]
            able.sort(key=lambda kind: (self.fleet[kind].memory_gib, -self.fleet[kind].speed_of(kind_of_job)))
            for number in able:
                idle = self.idle[number]
                if sum(idle) < gpus:
                    continue
                order = sorted(range(len(idle)), key=lambda node: (-idle[node], node))
                one = sorted((free, node) for node, free in enumerate(idle) if free >= gpus)
                nodes, left = {}, gpus
                for node in [one[0][1]] if one else order:
                    if left and idle[node]:
                        nodes[node] = min(left, idle[node])
                        left -= nodes[node]
                return number, tp, nodes, run_s / self.fleet[number].speed_of(kind_of_job)
        return None

    def run(self):
        queue, running, found = [], [], {}
        coming = sorted(range(len(self.rows)), key=lambda job: self.rows[job][0])
        while coming or running:
            now = min([end for end, _, _ in running] + [float(self.rows[job][0]) for job in coming[:1]])
            for end, number, nodes in [run for run in running if run[0] <= now]:
                running.remove((end, number, nodes))
                for node, gpus in nodes.items():
                    self.idle[number][node] += gpus
            while coming and self.rows[coming[0]][0] <= now:
                queue.append(coming.pop(0))
            for job in list(queue):
                choice = self.decide(*self.rows[job][1:])
                if choice:
                    number, tp, nodes, run_s = choice
                    queue.remove(job)
                    for node, gpus in nodes.items():
                        self.idle[number][node] -= gpus
                    running.append((now + run_s, number, nodes))
                    found[job] = (self.fleet[number].name, sum(nodes.values()), tp, now, now + run_s)
        return [found[job] for job in range(len(self.rows))]


@settings(max_examples=40, deadline=None)
@given(workloads())
def test_has_is_what_its_sentences_say(most_held, workload):
    fleet, rows = workload
    run = dispatch(*tables(rows), fleet, heterogeneity_aware, policy="HAS")
    assert (
        run.outcomes.select("gpu_type", "gpus", "tp", "first_start", "end").rows()
        == Oracle(fleet, rows).run()
    )
    sizes = {kind.name: kind.gpus_per_node for kind in fleet}
    assert all(gpus <= sizes[name] for (name, _), gpus in most_held(run.places).items())
    assert run.places.group_by("job_id").agg(pl.col("gpus").sum()).height == len(rows)
    assert run.decisions <= len(rows) * (len(rows) + 1)


def single_plans(draw, gpus, most=25):
    row = st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from(gpus))
    rows = draw(st.lists(row, min_size=1, max_size=most))
    jobs, plans = tables([(submit, None, [(size, 1, 1.0, float(run))]) for submit, run, size in rows])
    work = jobs.select("job_id", "tenant", "submit_s").with_columns(
        run_s=plans["run_s"], gpus=plans["gpus"], profile=pl.lit("gpu")
    )
    return jobs, plans, work


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(["pass", "strict"]), st.booleans())
def test_on_one_type_has_is_best_fit(data, queue, pool):
    nodes, per_node = (1, 7) if pool else (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    jobs, plans, work = single_plans(data.draw, list(range(1, 8)) if pool else [1])
    run = dispatch(
        jobs, plans, (GpuType("one", nodes, per_node, 80.0),), heterogeneity_aware, policy="p", queue=queue
    )
    plain = schedule(work, Fleet(BOARD, nodes, per_node), GangRules(queue=queue), policy="p")
    assert run.outcomes.drop("gpu_type", "tp").equals(plain)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_on_one_type_opportunistic_is_first_fit(data):
    nodes, per_node = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    jobs, plans, work = single_plans(data.draw, list(range(1, nodes * per_node + 1)))
    jobs = jobs.with_columns(asked_type=pl.lit("one"), asked_gpus=plans["gpus"])
    run = dispatch(jobs, plans, (GpuType("one", nodes, per_node, 80.0),), opportunistic, policy="p")
    free = Preemption(overhead_s=((1, 0.0),), start_lag_s=0.0)
    plain = schedule_by(first_fit, work, Fleet(BOARD, nodes, per_node), policy="p", preemption=free)
    assert run.outcomes.drop("gpu_type", "tp").equals(plain)


def first_fit(cluster):
    """The first node that holds a job, else idle GPUs in the order of the nodes."""
    for job in list(cluster.waiting):
        whole = [node for node, idle in enumerate(cluster.idle) if idle >= job.gpus]
        nodes, left = ({whole[0]: job.gpus}, 0) if whole else ({}, job.gpus)
        for node, idle in enumerate(cluster.idle):
            if left and idle:
                nodes[node] = min(idle, left)
                left -= nodes[node]
        if not left:
            cluster.start(job, nodes)


class TestByHand:
    FLEET = (
        GpuType("small", 1, 4, 24.0),
        GpuType("large", 1, 4, 80.0, speed=2.0, class_speeds={"slow": 0.5}),
    )

    def test_fewest_gpus_first_then_the_smallest_memory_that_does(self):
        jobs, plans = tables(
            [(0, None, [(2, 1, 20.0, 60.0), (1, 1, 40.0, 100.0)]), (0, None, [(1, 1, 20.0, 60.0)])]
        )
        run = dispatch(jobs, plans, self.FLEET, heterogeneity_aware, policy="p").outcomes
        assert run.select("gpu_type", "gpus", "end").rows() == [("large", 1, 50.0), ("small", 1, 60.0)]

    def test_speed_by_class(self):
        jobs, plans = tables([(0, "slow", [(1, 1, 40.0, 100.0)])])
        assert dispatch(jobs, plans, self.FLEET, heterogeneity_aware, policy="p").outcomes[
            "end"
        ].to_list() == [200.0]

    def test_users_who_ask_for_the_large_type_wait_for_it(self):
        jobs, plans = tables([(0, None, [(4, 1, 10.0, 100.0)]), (0, None, [(4, 1, 10.0, 100.0)])])
        asked = jobs.with_columns(asked_type=pl.lit("large"), asked_gpus=pl.lit(4, pl.Int32))
        assert dispatch(asked, plans, self.FLEET, opportunistic, policy="p").outcomes["end"].to_list() == [
            50,
            100,
        ]
        assert dispatch(jobs, plans, self.FLEET, heterogeneity_aware, policy="p").outcomes[
            "end"
        ].to_list() == [100, 50]


class TestRefused:
    FLEET = TestByHand.FLEET

    def test_jobs_that_fit_nowhere(self):
        jobs, plans = tables(
            [(0, None, [(1, 1, 90.0, 1.0), (5, 1, 1.0, 1.0)]), (0, None, [(1, 1, 1.0, 1.0)])]
        )
        with pytest.raises(ScenarioError, match="1 without: '0'"):
            dispatch(jobs, plans, self.FLEET, heterogeneity_aware, policy="p")

    def test_users_who_picked_nothing_that_holds_the_job(self):
        jobs, plans = tables([(0, None, [(1, 1, 40.0, 1.0)])])
        jobs = jobs.with_columns(asked_type=pl.lit("small"), asked_gpus=pl.lit(1, pl.Int32))
        with pytest.raises(SchemaError, match=r"'asked_type' and 'asked_gpus'.*'0'"):
            dispatch(jobs, plans, self.FLEET, opportunistic, policy="p")

    def test_fleets(self):
        jobs, plans = tables([(0, None, [(1, 1, 1.0, 1.0)])])
        for fleet in ((), (self.FLEET[0], self.FLEET[0])):
            with pytest.raises(ScenarioError, match="at least one type, each once"):
                dispatch(jobs, plans, fleet, heterogeneity_aware, policy="p")
        with pytest.raises(ScenarioError, match="GPU type 'x'"):
            GpuType("x", 1, 8, memory_gib=0.0)
