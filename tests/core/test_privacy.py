"""Pseudonyms and small groups: nothing of a name remains, nothing of a figure changes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.cli.application import main
from gpuplanner.core.errors import PrivacyError
from gpuplanner.core.privacy import (
    count_rows_with_names,
    make_pseudonym,
    merge_small_tenants_expression,
    read_key,
    write_new_key,
)
from gpuplanner.ingest.dataset_folder import open_dataset

DUMP = """JobID|User|Account|State|Submit|Start|End|AllocTRES|NNodes
17|alice|vision|COMPLETED|2026-02-02T09:00:00|2026-02-02T09:05:00|2026-02-02T11:05:00|gres/gpu=4,node=1|1
18|bob|vision|COMPLETED|2026-02-02T09:00:00|2026-02-02T09:05:00|2026-02-02T10:05:00|gres/gpu=1,node=1|1
19|carol|speech|COMPLETED|2026-02-02T12:00:00|2026-02-02T11:00:00|2026-02-02T10:05:00|gres/gpu=1,node=1|1
"""


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpuplanner", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def key_file(tmp_path):
    write_new_key(tmp_path / "names.key")
    return tmp_path / "names.key"


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "jobs.txt"
    path.write_text(DUMP)
    return path


def test_no_name_remains_and_no_figure_changes(monkeypatch, tmp_path, dump, key_file):
    words = ["ingest", "slurm", dump, "--tz", "UTC", "--quiet", "-o"]
    assert run(monkeypatch, *words, tmp_path / "open") == 0
    private = ["--pseudonyms", "user,tenant", "--key-file", key_file]
    assert run(monkeypatch, *words, tmp_path / "private", *private) == 0
    for path in filter(Path.is_file, (tmp_path / "private").rglob("*")):
        content = path.read_bytes()
        found = [name for name in ("alice", "bob", "carol", "vision", "speech") if name.encode() in content]
        assert not found, path.name
    named, nameless = open_dataset(tmp_path / "open"), open_dataset(tmp_path / "private")
    assert named.summary() == nameless.summary()
    hidden = ["user", "tenant"]
    assert nameless.jobs.drop(hidden).equals(named.jobs.drop(hidden))
    assert nameless.jobs["tenant"].n_unique() == named.jobs["tenant"].n_unique()
    assert nameless.rejects.drop("raw").equals(named.rejects.drop("raw"))
    again = tmp_path / "again"
    assert run(monkeypatch, *words, again, *private) == 0
    assert open_dataset(again).jobs.equals(nameless.jobs)
    write_new_key(tmp_path / "other.key")
    private[-1] = tmp_path / "other.key"
    assert run(monkeypatch, *words, again, *private) == 3  # another key would give everybody a second name
    assert run(monkeypatch, *words, again, *private, "--replace") == 0
    assert not set(open_dataset(again).jobs["user"]) & set(nameless.jobs["user"])


LEFT = """JobID|User|Account|Partition|JobName|State|Submit|Start|End|AllocTRES|NodeList
17|alice|vision|vision|train_Alice-bert|COMPLETED|2026-02-02T09:00:00|2026-02-02T09:05:00|2026-02-02T11:05:00|gres/gpu=4|n1
18|bob|vision|gpu|malice|COMPLETED|2026-02-02T09:00:00|2026-02-02T09:05:00|2026-02-02T10:05:00|gres/gpu=1|vision-n2
"""


def test_a_name_that_can_still_be_read_elsewhere_is_warned_of(monkeypatch, tmp_path, key_file):
    """Who is told in the job name and whose group in partition and nodes is said, and no name is said with it."""
    path = tmp_path / "jobs.txt"
    path.write_text(LEFT)
    words = ["ingest", "slurm", path, "--tz", "UTC", "--quiet", "--key-file", key_file, "-o", tmp_path / "out"]
    assert run(monkeypatch, *words, "--pseudonyms", "user,tenant") == 0
    quality = open_dataset(tmp_path / "out").quality
    told = quality.filter(pl.col("check").str.contains("replaced elsewhere")).sort("check")
    assert told.select("check", "severity", "rows").rows() == [
        ("job_name: holds a user that was replaced elsewhere", "warning", 1),
        ("node_list: holds a tenant that was replaced elsewhere", "warning", 1),
        ("partition: holds a tenant that was replaced elsewhere", "warning", 1),
    ]
    assert run(monkeypatch, *words, "--pseudonyms", "user,tenant,partition,job_name", "--replace") == 0
    trace = open_dataset(tmp_path / "out")
    assert trace.jobs["partition"].str.starts_with("partition-").all()
    left = trace.quality.filter(pl.col("check").str.contains("replaced elsewhere"))["check"].to_list()
    assert sorted(left) == [f"node_list: holds a {who} that was replaced elsewhere" for who in ("partition", "tenant")]


@given(st.lists(st.text("abA_-1 ", max_size=8), max_size=8), st.lists(st.text("abA1", max_size=3), max_size=3))
def test_names_are_found_where_they_stand_as_words(texts: list[str], names: list[str]):
    telling = [name.lower() for name in names if len(name) > 1 and not name.isdigit()]
    expected = sum(any(name in re.split(r"[^a-z0-9]+", text.lower()) for name in telling) for text in texts)
    table = pl.DataFrame({"text": texts, "kept": texts}, schema={"text": pl.String, "kept": pl.String})
    assert count_rows_with_names(table, names, except_columns=["kept"]) == ({"text": expected} if expected else {})


def test_a_key_is_never_overwritten(monkeypatch, capsys, tmp_path):
    path = tmp_path / "names.key"
    assert run(monkeypatch, "keygen", path) == 0
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(monkeypatch, "keygen", path) == 3
    assert path.read_bytes() == before
    assert "new file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "ab", "x" * 64, "ab" * 31, "é"])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / "names.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PrivacyError, match=r"keygen"):
        read_key(path)


def test_a_key_that_others_can_read_is_refused(key_file: Path):
    key_file.chmod(0o640)
    with pytest.raises(PrivacyError, match="chmod 600"):
        read_key(key_file)


@given(st.text(), st.text(), st.binary(min_size=32, max_size=32))
def test_pseudonyms_tell_names_apart_and_say_nothing_of_them(one, other, key):
    assert (make_pseudonym(one, key, "user") == make_pseudonym(other, key, "user")) == (one == other)
    assert len(make_pseudonym(one, key, "user")) == len("user-") + 10


PEOPLE = st.lists(st.tuples(st.none() | st.sampled_from("abcdef"), st.none() | st.integers(0, 12)), max_size=60)


@given(PEOPLE, st.integers(1, 6))
def test_no_group_of_too_few_is_left_over(rows, smallest):
    table = pl.DataFrame(rows, schema={"tenant": pl.String, "user": pl.Int64}, orient="row")
    merged = table.with_columns(merge_small_tenants_expression(table.lazy(), smallest))
    assert merged.height == table.height
    # Who is not named may be one and the same: he counts for nobody.
    sizes = dict(merged.group_by("tenant").agg(pl.col("user").drop_nulls().n_unique()).iter_rows())
    too_few = [name for name, people in sizes.items() if people < smallest]
    assert not too_few or list(sizes) == ["(small groups)"]
    large = merged["tenant"].ne_missing("(small groups)")
    assert table.filter(large).equals(merged.filter(large))


def test_a_study_shows_small_tenants_together():
    from gpuplanner.core.scenario import Scenario
    from gpuplanner.usage.period_accounts import scenario_ledger
    from gpuplanner.usage.planning_history import history

    users = history(Scenario()).trace.jobs.group_by("tenant").agg(pl.col("user").n_unique())
    few, many = int(users["user"].min()), int(users["user"].max())
    kept, merged = Scenario(smallest_group=few), Scenario(smallest_group=many + 1)
    assert set(scenario_ledger(kept)["tenant"]) - {"-"} == set(users["tenant"])
    assert set(scenario_ledger(merged)["tenant"]) - {"-"} == {"(small groups)"}
    hours = [scenario_ledger(each)["gpu_hours"].sum() for each in (kept, merged)]
    assert hours[0] == pytest.approx(hours[1], rel=1e-12)
