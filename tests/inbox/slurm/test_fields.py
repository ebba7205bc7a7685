"""Words of Slurm: states that sacct cuts off at the width of its column, and counts of GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.inbox.slurm.fields import STATES, known_fields, parse_tres, slurm_state


@given(name=st.sampled_from(sorted(STATES)), letters=st.integers(0, 13))
def test_a_state_that_was_cut_off_is_known_if_three_letters_tell_it(name, letters):
    cut = name[:letters]
    meant = {ours for other, ours in STATES.items() if other.startswith(cut)}
    expected = meant.pop() if len(cut) >= 3 and len(meant) == 1 else None
    assert slurm_state(f"{cut}+") == expected
    assert slurm_state(f"{name} by 380693") == STATES[name]


COUNTS = st.dictionaries(st.sampled_from(["a100", "h100", "nvidia_a100_3g.20gb"]), st.integers(0, 99))


@given(typed=COUNTS, untyped=st.none() | st.integers(0, 999), nodes=st.none() | st.integers(1, 9))
def test_gpus_are_the_untyped_count_or_the_typed_ones_together(typed, untyped, nodes):
    items = ["cpu=8", *(f"gres/gpu:{name}={count}" for name, count in typed.items())]
    items += [] if untyped is None else [f"gres/gpu={untyped}"]
    items += [] if nodes is None else [f"node={nodes}"]
    read = parse_tres(",".join(items))
    assert read.gpus == (sum(typed.values()) if untyped is None else untyped)
    assert (read.types, read.typed, read.nodes) == (len(typed), sum(typed.values()), nodes)


@pytest.mark.parametrize(
    "text", ["", "cpu", "gres/gpu=", "=4", "gres/gpu=4.5", "gres/gpu=-1", "node=1000000000"]
)
def test_what_is_no_list_of_resources_is_refused(text):
    with pytest.raises(ValueError):
        parse_tres(text)


def test_a_file_without_header_needs_more_than_half_of_its_lines_to_fit():
    fields = "7|7|u|g|COMPLETED|2025-01-01T00:00:00|2025-01-01T01:00:00" + "|" * 15
    line = f"{fields}|2025-01-01T00:00:00" + "|" * 9
    names = known_fields([line])
    assert names is not None
    assert (names[4], names[22]) == ("State", "Submit")
    assert known_fields([line, "no line of ours"]) is None
    assert known_fields([line, line, "no line of ours"]) == names
    assert known_fields([]) is None
