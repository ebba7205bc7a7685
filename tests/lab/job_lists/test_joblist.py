"""Job lists in files, and the command that runs them."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from gpuplanner.cli.app import main
from gpuplanner.errors import TraceFormatError
from gpuplanner.lab.job_lists import read_job_list

HEAD = "job_id,submit_time,duration,num_gpus\n"
MORE = "job_id,submit_time,duration,num_gpus,tier,limit_s\n"


@pytest.fixture
def file_of(tmp_path):
    def write(text):
        path = tmp_path / "jobs.csv"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected columns 'job_id'.*got nothing"),
        ("job_id;submit_time;duration;num_gpus\na;0;5;1\n", "got no 'job_id'.* among 'job_id;submit_time;"),
        ("job_id,submit_time,duration,num_gpus,num_gpus\na,0,5,1,8\n", "got 'num_gpus' more than once"),
        (HEAD + "a,0,5\nb,0,5,1,7\n", "expected a CSV file"),
        (HEAD, "at least one job; got no rows"),
        ("job_id,submit_time,num_gpus\na,0,1\n", "got no 'duration'"),
        (
            HEAD + "a,0,5,1\nb,0,-5,1\n",
            "'duration': expected a number from 0 to 1e12; got 1 of 2 others: 'row 2: -5'",
        ),
        (HEAD + "a,0,5,0\n", "'num_gpus': expected a whole number from 1"),
        (HEAD + "a,0,5,1.5\n", "'num_gpus'.*row 1: 1.5"),
        (HEAD + "a,soon,5,1\n", "'submit_time'.*row 1: soon"),
        (HEAD + "a,-1,5,1\n", "'submit_time'.*row 1: -1"),
        (HEAD + "a,0,1e308,1\n", "'duration'.*from 0 to 1e12.*row 1: 1e308"),
        (HEAD + "a,0,5,1e20\n", "'num_gpus'.*row 1: 1e20"),
        (HEAD + "a,0,5,\n", "'num_gpus'.*row 1: nothing"),
        (HEAD + ",0,5,1\n", "'job_id': expected an identity.*row 1: nothing"),
        (HEAD + "a,0,5,1\nb,0,5,1\na,0,5,1\n", "that stand once; got 2 of 3 others: 'row 1: a', 'row 3: a'"),
        (MORE + "a,0,5,1,1e20,\n", "'tier'.*row 1: 1e20"),
        (MORE + "a,0,5,1,0.5,\n", "'tier'.*row 1: 0.5"),
        (MORE + "a,0,5,1,x,\n", "'tier'.*row 1: x"),
        (MORE + "a,0,5,1,,never\n", "'limit_s'.*row 1: never"),
        (MORE + "a,0,5,1,,0\n", "'limit_s'.*row 1: 0"),
        (HEAD + "a,0,inf,1\n", "'duration'.*inf"),
    ],
)
def test_bad_lists_are_refused_by_column_and_row(file_of, text, words):
    with pytest.raises(TraceFormatError, match=words):
        read_job_list(file_of(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceFormatError, match=r"nowhere\.csv"):
        read_job_list(tmp_path / "nowhere.csv")


def test_gzip_and_optional_columns(tmp_path):
    path = tmp_path / "jobs.csv.gz"
    rows = "job_id,submit_time,duration,num_gpus,tenant,tier,limit_s\na,0,5,1,x,2,9\nb,1,5,1,y,,\n"
    path.write_bytes(gzip.compress(rows.encode()))
    jobs, remarks = read_job_list(path)
    assert jobs.select("tenant", "tier", "limit_s").rows() == [("x", 2, 9.0), ("y", None, 5.0)]
    assert remarks == []


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpuplanner", "simulate", *arguments])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


class TestCommand:
    LIST = HEAD + "late,30,10,4\nfirst,0,100,8\nzero,0,0,1\nshort,0,10,8\nlong,0,50,8\n"

    def test_totals_as_json_and_oddities_on_stderr(self, capsys, monkeypatch, file_of):
        path = str(file_of(self.LIST))
        code, out, err = run(
            capsys,
            monkeypatch,
            "--jobs",
            path,
            "--gpus",
            "8",
            "--order",
            "sjf",
            "--queue",
            "strict",
            "--json",
        )
        found = json.loads(out)
        assert code == 0
        assert found.pop("seconds_with_tables") >= found.pop("seconds") >= 0
        waits = next(row for row in found.pop("distribution") if row["measure"] == "queueing_delay_s")
        assert (waits["jobs"], waits["mean"], waits["max"]) == (5, (0 + 0 + 10 + 30 + 70) / 5, 70.0)
        # zero at 0, short 0 to 10, long 10 to 60, late 60 to 70, first 70 to 170
        assert found == {
            "avg_jct_s": (0 + 10 + 60 + 40 + 170) / 5,
            "avg_queueing_delay_s": (0 + 0 + 10 + 30 + 70) / 5,
            "last_end_s": 170.0,
            "makespan_s": 170.0,
        }
        for words in (
            "rows out of order of submission: 1",
            "submissions at the instant of another: 3",
            "'zero'",
        ):
            assert words in err

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["--gpus", "8", "--order", "lass"], 3, "order 'lass' is unknown"),
            (["--gpus", "4"], 3, "'gpus'.*'first', 'short', 'long'"),
            ([], 2, "--jobs needs --gpus"),
            (["--gpus", "12", "--gpus-per-node", "8"], 2, "not a number of whole nodes"),
            (["sample", "--gpus", "8"], 2, "give one of SCENARIO and --jobs FILE"),
        ],
    )
    def test_what_is_refused(self, capsys, monkeypatch, file_of, arguments, code, words):
        import re

        ended, out, err = run(capsys, monkeypatch, "--jobs", str(file_of(self.LIST)), *arguments)
        assert (ended, out) == (code, "")
        assert re.search(words, err)

    def test_either_a_scenario_or_a_list_is_needed(self, capsys, monkeypatch):
        code, _, err = run(capsys, monkeypatch)
        assert code == 2
        assert "give one of SCENARIO and --jobs FILE" in err
