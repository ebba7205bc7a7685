"""The proof agrees with a search that shares nothing with it, and speaks in words."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import GeometryError
from gpuplanner.hardware.catalog import facts, mig_model_names
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import list_profile_counts, spread_over_gpus
from gpuplanner.hardware.mig_layouts import (
    find_creation_order,
    find_layout_faults,
    iterate_arrangements,
    place_as_created,
    prove,
)
from tests.examples import examples

ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
Vector = tuple[int, ...]


def table(gpu_model: str) -> list[dict[str, Any]]:
    return facts("mig_profiles").filter(gpu_model=gpu_model).to_dicts()


def brute_force(gpu_model: str) -> set[Vector]:
    """Feasible count vectors, by walking the slices from left to right and keeping all sums."""
    rows = table(gpu_model)
    slices = rows[0]["memory_slices_total"]
    reached: list[set[Vector]] = [set() for _ in range(slices + 1)]
    reached[0].add((0,) * len(rows))
    for position in range(slices):
        reached[position + 1] |= reached[position]
        for index, row in enumerate(rows):
            if str(position) in row["placement_starts"].split(";"):
                reached[position + row["placement_size"]] |= {
                    (*v[:index], v[index] + 1, *v[index + 1 :]) for v in reached[position]
                }
    full = [row for row in rows if row["compute_slices"] == row["compute_slices_total"]]
    return {
        vector
        for vector in reached[slices]
        if all(count <= row["max_instances"] for count, row in zip(vector, rows, strict=True))
        and all(
            sum(count * (row[engine] or 0) for count, row in zip(vector, rows, strict=True))
            <= max(row[engine] or 0 for row in full)
            for engine in ENGINES
            if all(row[engine] is not None for row in rows)
        )
    }


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_proof_agrees_with_brute_force(gpu_model: str) -> None:
    """Every feasible count is proved; every count one instance larger that is not feasible is refused."""
    names = [row["profile"] for row in table(gpu_model)]
    feasible = brute_force(gpu_model)
    assert {tuple(counts.get(name, 0) for name in names) for counts in list_profile_counts(gpu_model)} == feasible - {
        (0,) * len(names)
    }
    beyond = {
        (*vector[:index], vector[index] + 1, *vector[index + 1 :]) for vector in feasible for index in range(len(names))
    } - feasible
    for vector in feasible:
        proof = prove(gpu_model, dict(zip(names, vector, strict=True)))
        assert proof
        assert proof.reason == ""
        assert proof.layout.counts == {n: c for n, c in zip(names, vector, strict=True) if c}
        assert not find_layout_faults(gpu_model, proof.layout)
    for vector in beyond:
        proof = prove(gpu_model, dict(zip(names, vector, strict=True)))
        assert not proof
        assert proof.layout is None
        assert proof.reason


@settings(max_examples=examples(300))
@given(st.sampled_from(mig_model_names()), st.data())
def test_proof_agrees_with_brute_force_on_any_counts(gpu_model: str, data: st.DataObject) -> None:
    rows = table(gpu_model)
    vector = tuple(data.draw(st.integers(0, row["max_instances"] + 1)) for row in rows)
    counts = {row["profile"]: count for row, count in zip(rows, vector, strict=True)}
    assert prove(gpu_model, counts).ok == (vector in brute_force(gpu_model))


def test_cases_that_counting_compute_slices_gets_wrong() -> None:
    """Seven compute slices are not enough: memory slices decide (kubernetes test-infra, issue 886)."""
    assert prove("A100-40GB", {"1g.10gb": 4, "1g.5gb": 3}).reason == (
        "1g.10gb x4 (2 memory slices each) and 1g.5gb x3 (1 each) need 11 memory slices; A100-40GB has 8"
    )
    assert prove("A100-40GB", {"3g.20gb": 2, "1g.5gb": 1}).reason == (
        "3g.20gb x2 (4 memory slices each) and 1g.5gb x1 (1 each) need 9 memory slices; A100-40GB has 8"
    )
    assert str(prove("A100-40GB", {"3g.20gb": 1, "4g.20gb": 1}).layout) == "4g.20gb@0 3g.20gb@4"


@pytest.mark.parametrize(
    ("gpu_model", "counts"),
    [
        *(
            (name, {"1g": 2, "2g": 1, "3g": 1})
            for name in mig_model_names()
            if load_gpu_model(name).compute_slices == 7
        ),
        ("A30-24GB", {"1g": 2, "2g": 1}),
        ("RTX-PRO-6000-Blackwell-96GB", {"1g": 2, "2g": 1}),
    ],
)
def test_all_balanced_of_mig_parted_is_possible(gpu_model: str, counts: dict[str, int]) -> None:
    """2x1g + 1x2g + 1x3g on boards of seven compute slices, 2x1g + 1x2g on boards of four."""
    smallest = {
        f"{p.compute_slices}g": p.name for p in load_gpu_model(gpu_model).profiles if not p.attribute
    }  # profiles come largest first, so the last one of a compute size stays
    assert prove(gpu_model, {smallest[size]: count for size, count in counts.items()}).ok


def test_whole_gpu_and_nothing() -> None:
    assert prove("A30", {"gpu": 1}).layout.placements == ()
    assert prove("A30", {}).layout.placements == ()
    assert prove("A30", {"gpu": 2}).reason == "2 full GPUs are not one GPU"
    assert prove("A30", {"gpu": 1, "1g.6gb": 1}).reason == "a full GPU (MIG disabled) has no MIG instances"


@pytest.mark.parametrize("count", [-1, 1.0, True, "2"])
def test_counts_that_are_no_counts(count: Any) -> None:
    with pytest.raises(GeometryError, match=r"count of 1g\.6gb"):
        prove("A30", {"1g.6gb": count})


@pytest.mark.parametrize("counts", [{"1g.5gb": 3}, {"3g.20gb": 1, "1g.5gb": 2}, {"2g.10gb": 2, "1g.10gb": 1}])
def test_arrangements_are_all_valid_layouts_with_these_counts(counts: dict[str, int]) -> None:
    from gpuplanner.hardware.layout_enumeration import list_placed_layouts

    gpu_model = load_gpu_model("A100-40GB")
    found = list(iterate_arrangements(gpu_model, counts))
    assert len(set(found)) == len(found)
    assert set(found) == {layout for layout in list_placed_layouts(gpu_model) if layout.counts == counts}


# What drivers did, as told in the MIG User Guide and in transcripts of "nvidia-smi mig -cgi".
TRANSCRIPTS = [
    (["1g.5gb"] * 7, [6, 4, 5, 0, 1, 2, 3]),
    (["2g.10gb"] * 3 + ["1g.5gb+me"], [4, 0, 2, 6]),
    (["3g.20gb"] * 2, [4, 0]),
    (["1g.5gb", "2g.10gb", "4g.20gb"], [6, 4, 0]),
    (["2g.10gb"] + ["1g.5gb"] * 5, [4, 6, 0, 1, 2, 3]),
    (["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"], [4, 0, 2, 1]),
    (["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"], None),
]


@pytest.mark.parametrize(("names", "starts"), TRANSCRIPTS)
def test_predicted_places_are_those_of_the_driver(names: list[str], starts: list[int] | None) -> None:
    layout = place_as_created("A100-40GB", names)
    if starts is None:
        assert layout is None
    else:
        assert sorted((p.start, p.profile) for p in layout.placements) == sorted(zip(starts, names, strict=True))


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_largest_first_always_works_on_known_boards(gpu_model: str) -> None:
    for counts in list_profile_counts(gpu_model):
        order = find_creation_order(gpu_model, counts)
        assert Counter(order) == counts
        assert place_as_created(gpu_model, order) == prove(gpu_model, counts).layout


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(["A30", "A100-40GB", "RTX-PRO-4500"]), st.integers(1, 3), st.data())
def test_spread_agrees_with_trying_all_combinations(gpu_model: str, gpus: int, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([p.name for p in load_gpu_model(gpu_model).profiles]), max_size=3))
    counts = {name: data.draw(st.integers(0, 4)) for name in names}
    whole = data.draw(st.integers(0, 1))
    single = [{}, *list_profile_counts(gpu_model, names)] if names else [{}]
    sums = {
        tuple(sum(c.get(name, 0) for c in chosen) for name in counts)
        for chosen in itertools.combinations_with_replacement(single, gpus - whole)
    }
    found = spread_over_gpus(gpu_model, counts | {"gpu": whole}, gpus)
    assert (found is not None) == (tuple(counts.values()) in sums)
    if found is not None:
        assert len(found) <= gpus
        assert all(prove(gpu_model, each).ok for each in found)
        total = Counter({name: count for name, count in (counts | {"gpu": whole}).items() if count})
        assert sum(map(Counter, found), Counter()) == total
