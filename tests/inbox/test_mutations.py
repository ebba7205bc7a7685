"""Damaged dumps end in a decision, or in a sentence that says what to do: never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inbox.mutations import mutated_case

DUMPS = Path(__file__).parent / "cluster_dumps"
CASES = [case for family in ("kubernetes", "slurm") for case in sorted((DUMPS / family).iterdir())]
DOCUMENTED = (0, 1, 2, 3, 4, 5)
SEEDS = 300


def end_of_start(command, folder: Path, seed: int) -> tuple[int, str]:
    """Exit code and words of ``start`` on the files of one case, one of them damaged."""
    inputs = folder / "in"
    inputs.mkdir()
    files = mutated_case(CASES[seed % len(CASES)], inputs, seed)
    code, _, said = command(
        "start", *map(str, files), "--yes", "--no-page", "--quiet", "-o", str(folder / "out")
    )
    return code, said


@pytest.mark.parametrize("seed", [3, 17])
@pytest.mark.filterwarnings("ignore::gpuplanner.errors.GpuPlannerWarning")
def test_a_damaged_dump_ends_in_words(command, tmp_path, seed):
    code, said = end_of_start(command, tmp_path, seed)
    assert code in DOCUMENTED
    assert code == 0 or "gpuplanner: " in said


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.filterwarnings("ignore::gpuplanner.errors.GpuPlannerWarning")
def test_many_damaged_dumps_end_in_words(command, tmp_path, seed):
    code, said = end_of_start(command, tmp_path, seed)
    assert code in DOCUMENTED
    assert code == 0 or "gpuplanner: " in said
