"""Services sized together: against trying everything, by properties, and on the published scenarios."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import InfeasiblePlanError, ScenarioError
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.layout_enumeration import list_profile_counts
from gpuplanner.planner import service_sizing as service_search
from gpuplanner.planner.inference_service_measurements import read_service_demands, read_service_profiles
from gpuplanner.planner.inference_service_plan import ServiceInstances, ServicePlan, plan_services, verify_services
from gpuplanner.planner.milp_solvers import Solution
from gpuplanner.usage.requested_demand import smallest_by_compute
from tests.examples import examples
from tests.seeds import seeds

COLUMNS = ["service", "compute_slices", "batch", "processes", "throughput_per_s", "latency_s"]
SIZES = {"A100-80GB": (1, 2, 3, 4, 7), "A30": (1, 2, 4)}

# ParvaGPU's shipped plan of scenario 1 (deployment/SLO1): service, size, batch, processes, GPU.
SHIPPED = (
    ("bert", 1, 128, 3, 1),
    ("densenet121", 2, 16, 3, 0),
    ("inceptionv3", 1, 64, 1, 1),
    ("mobilenetv2", 1, 4, 2, 1),
    ("resnet50", 3, 64, 2, 0),
    ("vgg19", 2, 32, 2, 0),
)
PUBLISHED = ((2, 10), (3, 20), (5, 33), (7, 48))


def random_case(seed: int) -> tuple[str, pl.DataFrame, dict[str, float], dict[str, float]]:
    """Up to three services with up to six settings each, on one or two GPUs."""
    rng = np.random.default_rng(seed)
    gpu_model = str(rng.choice(list(SIZES)))
    rows = []
    rates, latencies = {}, {}
    for service in ("a", "b", "c")[: int(rng.integers(1, 4))]:
        for size in rng.choice(SIZES[gpu_model], size=3, replace=False).tolist():
            for batch in (4, 8):
                throughput = round(float(100 * size ** rng.uniform(0.7, 1.3)), 3)
                rows.append((service, size, batch, 1, throughput, batch / 100))
        rates[service] = float(rng.integers(50, 500))
        latencies[service] = float(rng.choice([100, 1000]))
    return gpu_model, pl.DataFrame(rows, schema=COLUMNS, orient="row"), rates, latencies


def covers(kinds: list[tuple[int, float]], rate: float) -> set[tuple[int, ...]]:
    """Every way to serve a rate with no instance to spare, as sorted sizes."""
    if rate <= 0:
        return {()}
    found = set()
    for place, (size, throughput) in enumerate(kinds):
        found |= {tuple(sorted((size, *rest))) for rest in covers(kinds[place:], rate - throughput)}
    return found


def least_by_trying(
    gpu_model: str, profiles: pl.DataFrame, rates: dict[str, float], limits: dict[str, float]
) -> tuple[int, int]:
    """Fewest GPUs, then slices: every cover of every service against every multiset of every GPU."""
    sizes = {profile.name: size for size, profile in smallest_by_compute(as_gpu_model(gpu_model)).items()}
    cut = [Counter({sizes[name]: n for name, n in held.items()}) for held in list_profile_counts(gpu_model, sizes)]
    each = [
        covers(
            [
                (row["compute_slices"], row["throughput_per_s"])
                for row in profiles.filter(service=name).to_dicts()
                if row["latency_s"] * 1000 <= 0.45 * limits[name]
            ],
            rate,
        )
        for name, rate in rates.items()
    ]
    wanted = {tuple(sorted(itertools.chain(*chosen))) for chosen in itertools.product(*each)}
    needs = sorted((sum(sizes), Counter(sizes)) for sizes in wanted)
    for gpus in itertools.count(1):
        held = {
            tuple(sorted(sum(chosen, Counter()).items()))
            for chosen in itertools.combinations_with_replacement(cut, gpus)
        }
        for slices, need in needs:
            if any(need <= Counter(dict(supply)) for supply in held):
                return gpus, slices
    raise AssertionError


@pytest.mark.parametrize("seed", seeds(30, 60))
def test_plan_is_the_best_of_all(seed: int) -> None:
    gpu_model, profiles, rates, latencies = random_case(seed)
    plan = plan_services(profiles, rates, latencies, gpu_model)
    assert (plan.gpus, plan.slices) == least_by_trying(gpu_model, profiles, rates, latencies)
    assert plan.proven
    assert verify_services(plan, profiles, rates, latencies) == []


@st.composite
def cases(draw: st.DrawFn) -> tuple[pl.DataFrame, dict[str, float], dict[str, float]]:
    """Services whose throughput and latency grow with size and batch, at rates for up to some dozen GPUs."""
    rows = []
    rates, latencies = {}, {}
    for service in draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)):
        base = draw(st.integers(20, 400))
        for size in draw(st.lists(st.sampled_from([1, 2, 3, 4, 7]), min_size=1, unique=True)):
            for batch in (1, 8, 32):
                gain = draw(st.integers(80, 130)) / 100
                throughput = base * size * gain * (1 + batch / 16)
                rows.append((service, size, batch, 1, throughput, batch / throughput))
        rates[service] = float(draw(st.integers(1, 9000)))
        latencies[service] = 3000.0 / base + draw(st.integers(0, 400))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row"), rates, latencies


@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.floats(1.0, 2.0))
def test_more_requests_never_need_fewer_gpus(case: Any, factor: float) -> None:
    profiles, rates, latencies = case
    plan = plan_services(profiles, rates, latencies)
    more = plan_services(profiles, {name: rate * factor for name, rate in rates.items()}, latencies)
    assert plan.proven
    assert more.proven
    assert (plan.gpus, plan.slices_bound) <= (more.gpus, more.slices_bound)


@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.floats(1.0, 4.0))
def test_a_looser_limit_never_needs_more_gpus(case: Any, factor: float) -> None:
    profiles, rates, latencies = case
    plan = plan_services(profiles, rates, latencies)
    loose = plan_services(profiles, rates, {name: limit * factor for name, limit in latencies.items()})
    assert (loose.gpus, loose.slices) <= (plan.gpus, plan.slices)


@settings(max_examples=examples(30), deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_names_and_their_order_change_nothing(case: Any, random: Any) -> None:
    profiles, rates, latencies = case
    others = list("uvwxyz")
    random.shuffle(others)
    new = dict(zip("abcdef", others, strict=True))
    renamed = profiles.with_columns(pl.col("service").replace(new)).sample(fraction=1, shuffle=True, seed=1)
    plan = plan_services(profiles, rates, latencies)
    same = plan_services(
        renamed, {new[name]: rate for name, rate in rates.items()}, {new[n]: s for n, s in latencies.items()}
    )
    assert (plan.gpus, plan.slices, plan.proven) == (same.gpus, same.slices, same.proven)


@settings(max_examples=examples(40), deadline=None)
@given(cases())
def test_together_is_never_worse_than_alone(case: Any) -> None:
    profiles, rates, latencies = case
    alone = plan_services(profiles, rates, latencies, method="alone")
    plan = plan_services(profiles, rates, latencies)
    assert alone.bound <= plan.bound == plan.gpus <= alone.gpus
    assert alone.slices_bound <= plan.slices
    for found in (alone, plan):
        assert verify_services(found, profiles, rates, latencies) == []


def test_sizing_one_by_one_can_waste_a_gpu() -> None:
    """A 3g is best per slice, but two of them strand a slice of each GPU that the 4g beside a 3g would use."""
    rows = [("a", 3, 1, 1, 330.0, 0.01), ("a", 4, 1, 1, 400.0, 0.01)]
    profiles = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    plan, alone = (plan_services(profiles, {"a": 730.0}, {"a": 100.0}, method=method) for method in ("joint", "alone"))
    assert (alone.gpus, plan.gpus, plan.layouts) == (2, 1, ("4g.40gb:1,3g.40gb:1",))


def test_a_batch_may_take_just_its_share_of_the_limit() -> None:
    profiles = pl.DataFrame([("a", 1, 1, 1, 100.0, 0.09)], schema=COLUMNS, orient="row")
    assert plan_services(profiles, {"a": 1.0}, {"a": 200.0}).gpus == 1
    with pytest.raises(InfeasiblePlanError, match=r"a: a batch may take 89\.55 ms of 199 ms, .* is 90 ms"):
        plan_services(profiles, {"a": 1.0}, {"a": 199.0})
    assert plan_services(profiles, {"a": 1.0}, {"a": 90.0}, latency_share=1).gpus == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rates": {"a": -1.0}}, "rate of a must be at least 0"),
        ({"latencies": {"a": 0.0}}, "latency limit of a must be above 0"),
        ({"rates": {"a": 1e12}}, "at most 100000 GPUs"),
        ({"latency_share": float("nan")}, "latency_share"),
        ({"solver": "abacus"}, "solver"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    profiles = pl.DataFrame([("a", 1, 1, 1, 100.0, 0.01)], schema=COLUMNS, orient="row")
    arguments: dict[str, Any] = {"rates": {"a": 1.0}, "latencies": {"a": 100.0}, **changes}
    with pytest.raises(ScenarioError, match=words):
        plan_services(profiles, **arguments)


def sizes_alone_waste() -> tuple[pl.DataFrame, dict[str, float], dict[str, float]]:
    rows = [("a", 3, 1, 1, 330.0, 0.01), ("a", 4, 1, 1, 400.0, 0.01)]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row"), {"a": 730.0}, {"a": 100.0}


def give_up(*_: Any, **__: Any) -> Solution:
    return Solution("unknown")


def cheat(model: Any, *_: Any, **__: Any) -> Solution:
    return Solution("optimal", np.zeros(len(model.names)), 0.0, None)


def interrupt(*_: Any, **__: Any) -> Solution:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failing", [give_up, cheat, interrupt])
def test_a_solver_that_fails_leaves_the_plan_to_begin_with(monkeypatch: Any, failing: Any) -> None:
    profiles, rates, latencies = sizes_alone_waste()
    monkeypatch.setattr(service_search, "solve", failing)
    plan = plan_services(profiles, rates, latencies)
    assert (plan.gpus, plan.bound, plan.proven) == (2, 1, False)
    assert verify_services(plan, profiles, rates, latencies) == []


def test_both_solvers_agree() -> None:
    gpu_model, profiles, rates, latencies = random_case(3)
    answers = [plan_services(profiles, rates, latencies, gpu_model, solver=name) for name in ("highs", "cbc")]
    assert [(plan.gpus, plan.slices, plan.proven) for plan in answers] == [
        (answers[0].gpus, answers[0].slices, True)
    ] * 2


@pytest.fixture(scope="module")
def published(public_data: Path) -> tuple[Path, pl.DataFrame]:
    """Folder of the scenarios, and the measured profiles."""
    folder = public_data / "parvagpu"
    return folder / "SLO", read_service_profiles(folder / "prof_data")


def scenario(published: tuple[Path, pl.DataFrame], row: int) -> tuple[dict[str, float], dict[str, float]]:
    folder, profiles = published
    names = profiles["service"].unique(maintain_order=True).to_list()
    return read_service_demands(folder / "SLO_req_rate.csv", folder / "SLO_latency.csv", names, row=row)


# Optima of a second program, written apart from this one in plain PuLP and without floors.
@pytest.mark.data
@pytest.mark.parametrize(
    ("latency_share", "expected"),
    [
        (0.45, ((2, 10), (3, 20), (5, 30), (7, 44))),
        (0.5, ((2, 10), (3, 19), (5, 30), (7, 43))),
        (1.0, ((2, 8), (3, 17), (4, 27), (6, 39))),
    ],
)
def test_published_scenarios(published: Any, latency_share: float, expected: Any) -> None:
    for row, (sizes, shipped) in enumerate(zip(expected, PUBLISHED, strict=True), start=1):
        rates, latencies = scenario(published, row)
        plan = plan_services(published[1], rates, latencies, latency_share=latency_share)
        assert plan.proven
        assert (plan.gpus, plan.slices) == sizes <= shipped
        assert verify_services(plan, published[1], rates, latencies) == []


@pytest.mark.data
def test_throughput_of_the_published_files_is_that_of_one_process(published: Any) -> None:
    """Little's law: requests in flight are throughput times latency."""
    ran = published[1].filter(pl.col("throughput_per_s") > 0)
    in_flight = pl.col("throughput_per_s") * pl.col("latency_s") / (pl.col("batch") * pl.col("processes"))
    by_processes = ran.group_by("processes").agg(in_flight.median()).sort("processes")
    assert by_processes["processes"].to_list() == [1, 2, 3, 4, 5]
    assert by_processes["throughput_per_s"].to_list() == pytest.approx([1.0] * 5, abs=0.01)


@pytest.mark.data
def test_the_shipped_plan_holds_under_the_same_reading(published: Any) -> None:
    """It meets its rates and limits as they are read here; read otherwise, it would miss half of its rates."""
    rates, latencies = scenario(published, 1)
    names = {size: profile.name for size, profile in smallest_by_compute(as_gpu_model("A100-80GB")).items()}
    segments = []
    for service, size, batch, processes, gpu in SHIPPED:
        setting = {"service": service, "compute_slices": size, "batch": batch, "processes": processes}
        row = published[1].filter(**setting).to_dicts()[0]
        segments.append(
            ServiceInstances(
                **setting,
                profile=names[size],
                throughput_per_s=row["throughput_per_s"],
                latency_ms=1000 * row["latency_s"],
                gpus=(gpu,),
            )
        )
    layouts = ("3g.40gb:1,2g.20gb:2", "1g.10gb:3")
    plan = ServicePlan(as_gpu_model("A100-80GB"), 0.45, 2, 2, 10, 10, tuple(segments), layouts, 0.0)
    assert verify_services(plan, published[1], rates, latencies) == []
    each = published[1].with_columns(pl.col("throughput_per_s") / pl.col("processes"))
    per_process = [
        ServiceInstances(**{**vars(s), "throughput_per_s": s.throughput_per_s / s.processes}) for s in segments
    ]
    short = verify_services(ServicePlan(**{**vars(plan), "segments": tuple(per_process)}), each, rates, latencies)
    assert [fault.split(":")[0] for fault in short] == ["densenet121", "mobilenetv2", "resnet50", "vgg19"]
