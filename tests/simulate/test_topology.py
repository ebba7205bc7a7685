"""Gangs placed by tiers of the network: against a Python oracle, against the plain loop, and by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.simulate import (
    Failures,
    Fleet,
    GangPlacement,
    Rules,
    Topology,
    run_gangs,
    run_gangs_by,
    schedule,
    schedule_by,
)

BOARD = "H100-80GB-SXM5"
STRICT, PASS = Rules(queue="strict"), Rules(queue="pass")


def gangs(*rows, **columns):
    """Rows of (submit_s, run_s, gpus)."""
    frame = pl.DataFrame(
        rows, schema={"submit_s": pl.Float64, "run_s": pl.Float64, "gpus": pl.Int32}, orient="row"
    )
    return frame.select(
        pl.int_range(pl.len()).cast(pl.String).alias("job_id"),
        pl.all(),
        tenant=pl.lit("t"),
        profile=pl.lit("gpu"),
    ).with_columns(**{name: pl.Series(values) for name, values in columns.items()})


@st.composite
def clusters(draw):
    """A small fleet of several tiers, and jobs for which it is short."""
    islands, island_gpus, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    fleet = Fleet(BOARD, nodes, islands * island_gpus)
    topology = Topology(
        island_gpus, fleet.gpus_per_node, draw(st.integers(1, 3)), draw(st.integers(1, 2)),
        (1.0, 1.25, 1.5, 1.5, 2.0),
    )  # fmt: skip
    size = st.integers(1, fleet.gpus)
    row = st.tuples(st.integers(0, 40), st.integers(0, 30), size)
    jobs = gangs(*draw(st.lists(row, min_size=1, max_size=20)))
    share = st.sampled_from([None, 0.0, 0.5, 1.0, 2.0])
    shares = draw(st.lists(share, min_size=jobs.height, max_size=jobs.height))
    slack = draw(st.lists(st.integers(0, 30), min_size=jobs.height, max_size=jobs.height))
    jobs = jobs.with_columns(
        sensitivity=pl.Series(shares, dtype=pl.Float64), limit_s=pl.col("run_s") + pl.Series(slack)
    )
    return jobs, fleet, topology


class Oracle:
    """Every domain of every tier as a list of islands; GPUs that are held, counted from the running jobs."""

    def __init__(self, jobs, fleet, placement, passing):
        topology, self.placement, self.passing = placement.topology, placement, passing
        self.per_node, self.size = topology.node_gpus // topology.island_gpus, topology.island_gpus
        self.islands = list(range(fleet.nodes * self.per_node))
        self.shares = dict(zip(jobs["job_id"], jobs["sensitivity"].fill_null(1.0), strict=True))
        rack = self.per_node * topology.nodes_per_rack
        keys = (1, self.per_node, rack, rack * topology.racks_per_spine, len(self.islands))
        self.tiers = [
            [
                [i for i in self.islands if i // key == number]
                for number in sorted({i // key for i in self.islands})
            ]
            for key in keys
        ]
        self.where = {}

    def nodes_of(self, islands):
        numbers = sorted({island // self.per_node for island in islands})
        return [[island for island in islands if island // self.per_node == node] for node in numbers]

    def idle(self, islands):
        return sum(self.free[island] for island in islands)

    def __call__(self, cluster):
        blocked = set()
        for job in sorted(cluster.waiting, key=lambda job: job.number):
            if job.gpus in blocked:
                continue
            if not self.start(cluster, job):
                blocked.add(job.gpus)
                if not self.passing:
                    return

    def start(self, cluster, job):
        held = [self.where[other] for other in cluster.running]
        self.free = {
            island: self.size - sum(where.get(island, 0) for where in held) for island in self.islands
        }
        where = getattr(self, self.placement.rule)(job.gpus)
        return bool(where) and self.accept(cluster, job, where)

    def accept(self, cluster, job, where):
        tier = self.tier_of(where)
        best = next(number for number, tier in enumerate(self.tiers) if len(tier[0]) * self.size >= job.gpus)
        sizes = sorted({len(tier[0]) for tier in self.tiers})
        steps = sizes.index(len(self.tiers[tier][0])) - sizes.index(len(self.tiers[best][0]))
        patience = self.placement.patience_s * steps if steps > 0 else 0.0
        if job.since_s + patience > cluster.now:
            cluster.wake_at(job.since_s + patience)
            return False
        nodes = {}
        for island, gpus in where.items():
            nodes[island // self.per_node] = nodes.get(island // self.per_node, 0) + gpus
        self.where[job] = where
        assert cluster.start(job, nodes, self.longer(job, where))
        return True

    def longer(self, job, where):
        return 1 + self.shares[job.job_id] * (self.placement.topology.slowdowns[self.tier_of(where)] - 1)

    def tier_of(self, where):
        return min(
            number
            for number, tier in enumerate(self.tiers)
            if any(set(where) <= set(domain) for domain in tier)
        )

    def cover(self, gpus, domains):
        """Islands by domains: the one that just holds what remains, else the one with the most."""
        chosen = []
        while gpus:
            left = [domain for domain in domains if domain not in [domain for domain, _ in chosen]]
            holds = [domain for domain in left if self.idle(domain) >= gpus]
            best = min(holds, key=self.idle) if holds else max(left, key=self.idle)
            chosen.append((best, min(gpus, self.idle(best))))
            gpus -= chosen[-1][1]
        return chosen

    def within_node(self, gpus, islands):
        return {
            island: part for (island,), part in self.cover(gpus, [[island] for island in islands]) if part
        }

    def by_tiers(self, gpus, room, fill):
        for number, tier in enumerate(self.tiers):
            able = [domain for domain in tier if self.idle(domain) >= gpus and (number < 2 or room(domain))]
            if able:
                best = min(able, key=self.idle)
                return self.within_node(gpus, best) if len(best) <= self.per_node else fill(best)
        return {}

    def consolidate(self, gpus):
        node_gpus = self.size * self.per_node

        def empty(domain):
            return [node for node in self.nodes_of(domain) if self.idle(node) == node_gpus]

        def fill(domain):
            parts = [min(node_gpus, gpus - done) for done in range(0, gpus, node_gpus)]
            chosen = zip(empty(domain), parts, strict=False)
            return {i: n for node, part in chosen for i, n in self.within_node(part, node).items()}

        return self.by_tiers(gpus, lambda domain: len(empty(domain)) * node_gpus >= gpus, fill)

    def best_fit(self, gpus):
        def fill(domain):
            chosen = self.cover(gpus, self.nodes_of(domain))
            return {i: n for node, part in chosen for i, n in self.within_node(part, node).items()}

        return self.by_tiers(gpus, lambda domain: True, fill)

    def first_fit(self, gpus):
        if self.idle(self.islands) < gpus:
            return {}
        nodes = self.nodes_of(self.islands)
        order = next((node for node in nodes if self.idle(node) >= gpus), self.islands)
        where = {}
        for island in order:
            where[island] = min(self.free[island], gpus - sum(where.values()))
        return {island: part for island, part in where.items() if part}

    def spread(self, gpus):
        if self.idle(self.islands) < gpus:
            return {}
        where = {}
        for _ in range(gpus):
            node = max(self.nodes_of(self.islands), key=self.idle)
            island = max(node, key=self.free.get)
            self.free[island] -= 1
            where[island] = where.get(island, 0) + 1
        return where


class EasyOracle(Oracle):
    """Room for the head is counted anew, from all that runs and its limits, for every job that would pass it."""

    def __init__(self, jobs, fleet, placement):
        super().__init__(jobs, fleet, placement, passing=True)
        self.due = {}  # when jobs are over by their limits

    def __call__(self, cluster):
        queue = sorted(cluster.waiting, key=lambda job: job.number)
        while queue and self.start(cluster, queue[0]):
            queue.pop(0)
        if not queue:
            return
        head, self.due = queue[0], {job: self.due[job] for job in cluster.running}
        shadow = min(
            instant
            for instant in [cluster.now, *(max(due, cluster.now) for due in self.due.values())]
            if self.room_at(cluster, instant, head)
        )
        in_the_way, closed = set(), set()
        for job in queue[1:]:
            in_time = cluster.now + job.limit_s <= shadow
            if job.gpus in closed or (job.gpus in in_the_way and not in_time):
                continue
            self.start(cluster, job, lambda job, where: self.may_pass(cluster, shadow, head, job, where))
            if job in cluster.running:
                continue
            (closed if in_time or not self.found else in_the_way).add(job.gpus)

    def start(self, cluster, job, may=lambda job, where: True):
        self.may, self.found = may, False
        return super().start(cluster, job)

    def accept(self, cluster, job, where):
        self.found = True
        if not self.may(job, where):
            return False
        self.due[job] = cluster.now + job.limit_s * self.longer(job, where)
        return super().accept(cluster, job, where)

    def may_pass(self, cluster, shadow, head, job, where):
        if cluster.now + job.limit_s * self.longer(job, where) <= shadow:
            return True
        return self.room_at(cluster, shadow, head, where)

    def room_at(self, cluster, instant, head, more=None):
        """Whether the head fits then, if all whose limit is over have ended."""
        held = [self.where[job] for job in cluster.running if self.due[job] > instant] + (
            [more] if more else []
        )
        idle = {i: self.size - sum(where.get(i, 0) for where in held) for i in self.islands}
        nodes = [sum(idle[i] for i in node) for node in self.nodes_of(self.islands)]
        if self.placement.rule != "consolidate":
            return sum(nodes) >= head.gpus
        node_gpus = self.size * self.per_node
        return sum(node >= min(head.gpus, node_gpus) for node in nodes) >= math.ceil(head.gpus / node_gpus)


@pytest.mark.parametrize("rule", ["consolidate", "best_fit", "first_fit", "spread"])
@settings(max_examples=40, deadline=None)
@given(cluster=clusters())
def test_backfill_by_every_rule_against_the_oracle(cluster, rule):
    jobs, fleet, topology = cluster
    placement = GangPlacement(topology, rule)
    jobs = jobs.filter((pl.col("gpus") / fleet.gpus_per_node).ceil() <= fleet.nodes)
    mine = run_gangs_by(EasyOracle(jobs, fleet, placement), jobs, fleet, policy="p")
    compiled = run_gangs(jobs, fleet, Rules(queue="easy"), policy="p", placement=placement)
    assert_frame_equal(compiled.outcomes.drop("node"), mine.outcomes.drop("node"))
    assert_frame_equal(compiled.spells.drop("node"), mine.spells.drop("node"))


@settings(max_examples=25, deadline=None)
@given(cluster=clusters(), order=st.sampled_from(["fifo", "sjf", "fair"]))
def test_backfill_into_one_node_is_the_plain_one(cluster, order):
    jobs, fleet, _ = cluster
    jobs = jobs.with_columns(tenant=pl.col("gpus").cast(pl.String))
    pool, rules = Fleet(BOARD, 1, fleet.gpus), Rules(queue="easy", order=order)
    placed = schedule(jobs, pool, rules, policy="p", placement=GangPlacement(Topology.flat(fleet.gpus)))
    assert placed.equals(schedule(jobs, pool, rules, policy="p"))


@pytest.mark.parametrize("queue", ["strict", "pass"])
@pytest.mark.parametrize("rule", ["consolidate", "best_fit", "first_fit", "spread"])
@settings(max_examples=25, deadline=None)
@given(cluster=clusters(), patience=st.sampled_from([0.0, 3.0, 20.0, math.inf]))
def test_every_rule_and_patience_against_the_oracle(cluster, patience, rule, queue):
    jobs, fleet, topology = cluster
    placement = GangPlacement(topology, rule, patience if rule in ("consolidate", "best_fit") else 0.0)
    if rule == "consolidate":
        jobs = jobs.filter((pl.col("gpus") / fleet.gpus_per_node).ceil() <= fleet.nodes)
    oracle = Oracle(jobs, fleet, placement, queue == "pass")
    mine = schedule_by(oracle, jobs, fleet, policy="p")
    compiled = schedule(jobs, fleet, Rules(queue=queue), policy="p", placement=placement)
    assert_frame_equal(compiled.drop("node"), mine.drop("node"))
    longer = compiled["lost_gpu_s"] + compiled["gpus"] * jobs["run_s"]
    held = compiled["gpus"] * (compiled["end"] - compiled["first_start"])
    assert (longer - held).abs().max() < 1e-6  # work is conserved


@pytest.mark.parametrize(
    "rules", [STRICT, PASS, *(Rules(queue="pass", order=order) for order in ("sjf", "fair"))]
)
@settings(max_examples=25, deadline=None)
@given(cluster=clusters())
def test_one_tier_is_the_plain_loop(cluster, rules):
    jobs, fleet, _ = cluster
    jobs = jobs.with_columns(tenant=pl.col("gpus").cast(pl.String))
    placed = schedule(
        jobs, fleet, rules, policy="p", placement=GangPlacement(Topology.flat(fleet.gpus_per_node))
    )
    assert placed.equals(schedule(jobs, fleet, rules, policy="p"))


class TestByHand:
    FLEET = Fleet(BOARD, 4, 8)
    TOPOLOGY = Topology(8, 8, nodes_per_rack=2, slowdowns=(1.0, 1.0, 1.5, 3.0, 3.0))

    def run(self, jobs, *arguments):
        return schedule(
            jobs, self.FLEET, STRICT, policy="p", placement=GangPlacement(self.TOPOLOGY, *arguments)
        )

    def test_a_gang_of_two_nodes_takes_the_rack_that_is_free(self):
        run = self.run(gangs((0, 100, 2), (1, 100, 16)))
        assert run["node"].to_list() == [0, 2]
        assert run["end"].to_list() == [100, 151]
        assert run["lost_gpu_s"].to_list() == [0, 16 * 50]

    @pytest.mark.parametrize(("patience", "start", "end"), [(0.0, 1, 151), (50.0, 51, 201), (200.0, 99, 199)])
    def test_waiting_for_a_node_pays_if_one_comes_soon(self, patience, start, end):
        # Three GPUs of every node are idle: six within a rack from 1 s on, and on one node from 99 s on.
        jobs = gangs((0, 99, 5), (0, 500, 5), (0, 500, 5), (0, 500, 5), (1, 100, 6))
        run = self.run(jobs, "best_fit", patience)
        assert run.select("first_start", "end").row(4) == (start, end)

    def test_spreading_costs_what_the_tier_says(self):
        run = self.run(gangs((0, 100, 4)), "spread")
        assert run["end"].to_list() == [300]

    def test_a_job_suffers_by_its_share(self):
        run = self.run(gangs((0, 100, 4), sensitivity=[0.25]), "spread")
        assert run["end"].to_list() == [150]


class TestRefused:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: Topology(3, 8),
            lambda: Topology(8, 8, nodes_per_rack=0),
            lambda: Topology(8, 8, slowdowns=(1.0, 1.1, 1.0, 1.0, 1.0)),
            lambda: Topology(8, 8, slowdowns=(0.9, 1.0, 1.0, 1.0, 1.0)),
            lambda: GangPlacement(Topology.flat(8), "worst_fit"),
            lambda: GangPlacement(Topology.flat(8), patience_s=-1.0),
        ],
    )
    def test_values_out_of_range(self, make):
        with pytest.raises(ScenarioError, match=r"topology|placement"):
            make()

    @pytest.mark.parametrize(
        "rules",
        [
            Rules(queue="pass", failures=Failures()),
            Rules(queue="easy", tiers_preempt=True),
        ],
    )
    def test_rules_that_the_loop_does_not_know(self, rules):
        with pytest.raises(
            ScenarioError, match="order 'fifo', 'sjf', 'qssf' or 'fair', queue 'strict', 'pass' or 'easy'"
        ):
            schedule(
                gangs((0, 1, 1)),
                Fleet(BOARD, 1, 8),
                rules,
                policy="p",
                placement=GangPlacement(Topology.flat(8)),
            )

    def test_backfill_promises_a_start_and_not_a_tier(self):
        placement = GangPlacement(Topology.flat(8), patience_s=5.0)
        with pytest.raises(ScenarioError, match=r"queue 'easy'.*patience_s 0"):
            schedule(
                gangs((0, 1, 1), limit_s=[1.0]), Fleet(BOARD, 1, 8), Rules(), policy="p", placement=placement
            )

    def test_limits_grow_with_the_slow_down_and_decide_who_passes(self):
        # The third waits to have two nodes at 100 s. On two islands the fourth would take twice 60 s, the fifth
        # keeps to one island.
        jobs = gangs(
            (0, 100, 4), (1, 5, 4), (2, 10, 8), (10, 60, 4), (11, 60, 2), limit_s=[100, 5, 10, 60, 60]
        )
        topology = Topology(2, 4, slowdowns=(1.0, 2.0, 2.0, 2.0, 2.0))
        shares = jobs.with_columns(sensitivity=pl.Series([0.0, 0.0, 0.0, 1.0, 1.0]))
        run = schedule(shares, Fleet(BOARD, 2, 4), Rules(), policy="p", placement=GangPlacement(topology))
        assert run.select("first_start", "end").rows() == [(0, 100), (1, 6), (100, 110), (110, 230), (11, 71)]

    def test_other_nodes_and_bad_shares(self):
        fleet = Fleet(BOARD, 1, 4)
        with pytest.raises(ScenarioError, match="node_gpus of the fleet, 4"):
            schedule(gangs((0, 1, 1)), fleet, STRICT, policy="p", placement=GangPlacement(Topology.flat(8)))
        jobs = gangs((0, 1, 1), sensitivity=[-1.0])
        with pytest.raises(SchemaError, match="'sensitivity'"):
            schedule(jobs, fleet, STRICT, policy="p", placement=GangPlacement(Topology.flat(4)))
