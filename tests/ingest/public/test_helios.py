"""Helios job tables: columns that contradict the times, and the zone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuplanner.ingest.public.job_lists import HELIOS_TRACE

File = Callable[..., Path]

HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
# The first three rows are the examples of the source's README.
ROWS = """\
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,1,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
4,u,vc,8,1,1,SUSPENDED,2020-06-09 18:41:28,2020-06-09 18:41:38,2020-06-09 19:41:38,3599,10
5,u,vc,8,1,1,EXPLODED,2020-06-09 18:41:28,2020-06-09 18:41:38,2020-06-09 19:41:38,3600,10
6,u,vc,8,1,1,TIMEOUT,2020-06-09 18:41:28,2020-06-09 18:40:00,2020-06-09 19:41:38,3600,10
7,u,vc,0,1,1,CANCELLED,2020-06-09 18:41:28,,2020-06-09 18:50:00,0,
4,u,vc,8,1,1,FAILED,2020-06-09 18:41:28,2020-06-09 18:41:38,2020-06-09 19:41:38,3600,10
8,u,vc,8,1,1,NODE_FAIL,2020-06-09 18:41:28,2020-06-09 18:41:38,2020-06-09 19:41:38,3600,99
"""


def test_columns_that_contradict_the_times_are_reported_and_not_used(file: File):
    quality = dict(HELIOS_TRACE([file(HEADER + ROWS)]).quality["check", "rows"].iter_rows())
    assert quality["queue is not start - submission"] == 1  # job 8
    assert "duration is not end - start" not in quality  # a second off is rounding
    wrong = ROWS.replace(",249,0", ",500,0")
    quality = dict(HELIOS_TRACE([file(HEADER + wrong)]).quality["check", "rows"].iter_rows())
    assert quality["duration is not end - start"] == 1


def test_the_zone_is_stated_in_the_provenance_and_can_be_given(file: File):
    path = file(HEADER + ROWS)
    assumed, given = HELIOS_TRACE([path]), HELIOS_TRACE([path], tz="UTC")
    assert assumed.provenance["time_zone"] == "Asia/Shanghai"
    assert any("names no zone" in note for note in assumed.provenance["notes"])
    assert not any("names no zone" in note for note in given.provenance["notes"])
    assert (given.jobs["submit_time"][0] - assumed.jobs["submit_time"][0]).total_seconds() == 8 * 3600
