"""GPUs as bins: layouts at every moment, and start slices that stay."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.planner.packing_bounds import capacity_weighings, moment_bound, strongest_bound
from gpuplanner.planner.packing_files_and_verification import verify_packing
from gpuplanner.planner.packing_problem import MigPackingProblem, build_packing_grid
from gpuplanner.planner.packing_search import pack
from tests.seeds import seeds

H100 = "H100-80GB-SXM5"


def at_once(*profiles: str, gpu_model: str = H100) -> MigPackingProblem:
    return MigPackingProblem([0] * len(profiles), [1] * len(profiles), profiles, gpu_model)


@pytest.mark.parametrize(
    ("profiles", "gpus"),
    [
        (["7g.80gb"], 1),
        (["7g.80gb", "1g.10gb"], 2),
        (["3g.40gb", "4g.40gb"], 1),
        (["4g.40gb", "4g.40gb"], 2),
        (["3g.40gb"] * 2, 1),
        (["3g.40gb"] * 2 + ["1g.10gb"], 2),
        (["1g.10gb"] * 7, 1),
        (["1g.10gb"] * 8, 2),
        (["2g.20gb"] * 3 + ["1g.10gb"], 1),
        (["2g.20gb"] * 4, 2),
        (["1g.20gb"] * 4, 1),
        (["1g.10gb+me"] * 2, 2),
        (["gpu", "gpu"], 2),
        (["gpu", "1g.10gb"], 2),
    ],
)
def test_known_layouts_of_one_moment(profiles, gpus):
    problem = at_once(*profiles)
    found = pack(problem, work_limit=20)
    assert (found.bins, found.proven, verify_packing(found, problem)) == (gpus, True, [])


def test_layout_prices_prove_more_than_slices():
    """Three 4g.40gb take 12 of the 16 memory slices of two GPUs, and yet need three."""
    problem = at_once(*["4g.40gb"] * 3)
    grid = build_packing_grid(problem)
    assert strongest_bound(grid, capacity_weighings(problem)) <= 2
    assert moment_bound(problem, grid) == 3


def test_an_instance_cannot_move():
    """Beside 2g and 3g a 2g must start at 0 or 2, beside 4g at 4: each moment fits one GPU, both do not."""
    names = ["2g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"]
    problem = MigPackingProblem([0, 0, 0, 2], [4, 2, 2, 4], names, H100)
    found = pack(problem, work_limit=3)
    assert (found.bins, found.lower_bound, found.stopped_by) == (2, 1, "work_limit")
    assert verify_packing(found, problem) == []


def random_problem(seed: int, n_items: int, gpu_model: str) -> MigPackingProblem:
    rng = np.random.default_rng(seed)
    names = [*(profile.name for profile in load_gpu_model(gpu_model).profiles), "gpu"]
    starts = rng.integers(0, 4 + n_items // 4, n_items)
    return MigPackingProblem(
        starts, starts + rng.integers(1, 5, n_items), [str(name) for name in rng.choice(names, n_items)], gpu_model
    )


@pytest.mark.parametrize("seed", seeds(12, 25))
@pytest.mark.parametrize("gpu_model", [H100, "A30"])
def test_small_problems_against_every_choice_of_gpus_and_places(fewest, gpu_model, seed):
    problem = random_problem(seed, 5, gpu_model)
    found = pack(problem, work_limit=5)
    best = fewest(problem)
    assert verify_packing(found, problem) == []
    assert found.lower_bound <= best == found.bins


@pytest.mark.parametrize("gpu_model", ["A100-40GB", "H200-141GB", "B200", "A30"])
def test_large_problems_hold(gpu_model):
    problem = random_problem(1, 150, gpu_model)
    found = pack(problem, work_limit=10)
    assert verify_packing(found, problem) == []
    assert len(found.places) == 150
    assert found.to_frame().columns == ["item", "bin", "start_slice"]
