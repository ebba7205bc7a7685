"""``gpuplanner sweep``: a table of policies, and Ctrl-C that keeps what is done."""

from __future__ import annotations

import json
import os
import signal

import pytest

from gpuplanner.cli.app import Exit

SMALL = [
    "--set",
    "replications=2",
    "--set",
    "horizon_slots=24",
    "--layouts",
    "3",
    "--set",
    "policies=static_whole",
]


@pytest.mark.long
def test_layouts_are_ranked(command):
    code, out, err = command("sweep", "sample", *SMALL, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["complete"], found["asked"], len(found["table"])) == (True, 3, 3)
    assert [row["rank"] for row in found["table"]] == [1, 2, 3]
    times = [row["mean_jct_s"] for row in found["table"] if not row["unserved"]]
    assert times == sorted(times)
    assert [line.split()[0] for line in err.splitlines() if "/" in line] == ["1/3", "2/3", "3/3"]


def test_the_measure_that_ranks_is_shown_and_the_baseline_named(command):
    code, out, err = command("sweep", "sample", *SMALL, "--rank-by", "p95_queueing_delay_s")
    assert code == 0
    title, _, head, *_ = out.splitlines()
    assert "ranked by p95_queueing_delay_s" in title
    assert head.split()[:5] == ["rank", "policy", "unserved", "p95_queueing_delay_h", "difference_h"]
    first = next(line.removeprefix("1/3  ") for line in err.splitlines() if line.startswith("1/3"))
    assert f"differences in p95_queueing_delay_s are to {first};" in err


def test_an_interrupt_keeps_what_is_done(command, monkeypatch):
    from gpuplanner.study.future import sweep as layout_sweep

    whole = layout_sweep.sweep

    def interrupted(*arguments, progress, **options):
        def pressed(done, total, name):
            progress(done, total, name)
            if done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return whole(*arguments, progress=pressed, **options)

    monkeypatch.setattr(layout_sweep, "sweep", interrupted)
    before = signal.getsignal(signal.SIGINT)
    code, out, _ = command("sweep", "sample", *SMALL)
    assert code == Exit.INTERRUPTED
    assert "2 of 3 policies" in out
    assert signal.getsignal(signal.SIGINT) is before
