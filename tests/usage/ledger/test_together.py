"""What jobs of one node did together: the busiest devices, one by one, shared by how much each job holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.usage.allocated_hours import STATES_BUSIEST_FIRST, divide_device_activity_among_jobs

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HELD = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4)


@given(held=HELD, states=st.lists(st.sampled_from(STATES_BUSIEST_FIRST), min_size=1, max_size=8))
def test_the_busiest_devices_are_those_held(held, states):
    """As many devices as are held are taken in the order of how busy they are, the last of them in part."""
    jobs = pl.DataFrame(
        {"job_id": [str(job) for job in range(len(held))], "gpus": held, "instances": None, "node_list": "n1"}
        | {"start_time": NOON, "end_time": NOON + timedelta(hours=1), "profile_requested": None},
        schema_overrides={"instances": pl.Int32, "profile_requested": pl.String},
    )
    devices = pl.DataFrame({"node": "n1", "kind": "", "begin": NOON, "state": states, "devices": 1.0}).with_columns(
        *((pl.col("state") == state).cast(pl.Float64).alias(state) for state in STATES_BUSIEST_FIRST),
        end=pl.lit(NOON + timedelta(minutes=1)),
        active=pl.lit(0.5),
    )
    rows = {row["job_id"]: row for row in divide_device_activity_among_jobs(jobs, devices).to_dicts()}
    left = sum(held)
    taken = dict.fromkeys(STATES_BUSIEST_FIRST, 0.0)
    for state in sorted(states, key=STATES_BUSIEST_FIRST.index):
        taken[state] += min(1.0, left)
        left -= min(1.0, left)
    for job, gpus in enumerate(held):
        part = gpus / sum(held)
        assert rows[str(job)]["devices"] == pytest.approx(sum(taken.values()) * part)
        for state, number in taken.items():
            assert rows[str(job)][state] == pytest.approx(number * part)


def test_a_job_that_is_named_on_its_devices_has_no_part_of_the_others():
    jobs = pl.DataFrame(
        {"job_id": ["named", "other"], "gpus": [1.0, 2.0], "instances": None, "node_list": "n1"}
        | {"start_time": NOON, "end_time": NOON + timedelta(hours=1), "profile_requested": None},
        schema_overrides={"instances": pl.Int32, "profile_requested": pl.String},
    )
    devices = pl.DataFrame({"node": ["n1"] * 3, "kind": "", "begin": NOON, "devices": 1.0, "active": 0.0}).with_columns(
        *(pl.lit(float(state == "idle_unclear")).alias(state) for state in STATES_BUSIEST_FIRST),
        end=pl.lit(NOON + timedelta(minutes=1)),
    )
    named = pl.DataFrame({"node": ["n1"], "kind": "", "job_id": "named", "named": 1})
    divided = divide_device_activity_among_jobs(jobs, devices, named)
    assert divided.select("job_id", "devices", "idle_unclear").rows() == [("other", 2.0, 2.0)]
