"""Files that people wrote: what is understood, what is wrong, and what cannot be read at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.report.export_verification import FileReport, verify_file

BOARD = "A100-40GB"


def check(folder: Path, text: str, gpu_model: str = BOARD, gpus_per_node: int = 8) -> FileReport:
    path = folder / "file"
    path.write_text(text, encoding="utf-8")
    return verify_file(path, gpu_model, gpus_per_node=gpus_per_node)


def config(entries: str) -> str:
    return f"version: v1\nmig-configs:\n  plan-a:\n{entries}"


OFF = "    - devices: all\n      mig-enabled: false\n"
NOT_CUT = "[{devices: all, mig-enabled: false}]"


def entry(devices: str = "[0, 1]", counts: str = "{}", enabled: str = "true") -> str:
    return f"    - devices: {devices}\n      mig-enabled: {enabled}\n      mig-devices: {counts}\n"


def test_good_and_bad_entries_side_by_side(tmp_path: Path) -> None:
    text = config(
        entry("[0, 1]", "{3g.20gb: 1, 4g.20gb: 1}")
        + entry("[2]", "{1g.10gb: 4, 1g.5gb: 3}")
        + entry("[3]", "{3g.20gb: 2, 1g.5gb: 1}")
        + "    - devices: [4, 5, 6, 7]\n      mig-enabled: false\n"
    )
    report = check(tmp_path, text)
    assert not report.ok
    assert report.findings == [
        "config plan-a, devices 0-1: 4g.20gb@0 3g.20gb@4",
        "config plan-a, devices 4-7: MIG disabled",
    ]
    assert report.problems == [
        "line 7: config plan-a, devices 2: 1g.10gb x4 (2 memory slices each) and 1g.5gb x3 (1 each) need 11 "
        "memory slices; A100-40GB has 8",
        "line 10: config plan-a, devices 3: 3g.20gb x2 (4 memory slices each) and 1g.5gb x1 (1 each) need 9 "
        "memory slices; A100-40GB has 8",
    ]


def test_devices_that_no_entry_names_are_mentioned(tmp_path: Path) -> None:
    report = check(tmp_path, config(entry("[1, 2]", "{7g.40gb: 1}")), gpus_per_node=4)
    assert report.ok
    assert report.findings[-1] == "config plan-a, devices 0, 3: not named, left unchanged"


def test_driver_names_are_understood_and_mentioned(tmp_path: Path) -> None:
    report = check(tmp_path, config(entry("all", "{3g.39gb: 2}")), gpu_model="A100-80GB")
    assert report.ok
    assert "'3g.39gb' is read as 3g.40gb; mig-parted compares names" in report.findings[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (config(entry(counts="{1g.5gb: 0}")), "count of '1g.5gb' must be a whole number above 0, not 0"),
        (config(entry(counts="{1g.5gb: 8}")), "1g.5gb x8: A100-40GB holds at most 7"),
        (config(entry(counts="{1g.10gb+me: 1}")), "MIG profile '1g.10gb+me' is unknown"),
        (config(entry(counts="{1c.3g.20gb: 1}")), "compute instance"),
        (config(entry("[8]")), "line 4: config plan-a: no device 8 on a node of 8 GPUs"),
        (config(entry("7")), "devices must be all, or a list such as [0, 1], not 7"),
        (config(entry("[0, 0]")), "line 4: config plan-a, devices 0: named twice, first in line 4"),
        (
            config(entry("[0, 1, 2]") + entry("[1, 2, 3]")),
            "line 7: config plan-a, devices 1-2: named twice, first in line 4",
        ),
        (config(entry(enabled="false", counts="{1g.5gb: 1}")), "mig-devices is set although mig-enabled is false"),
        (config("    - mig-enabled: false\n"), "devices is missing"),
        (
            config(OFF + "      device-filte: x\n"),
            "line 4: config plan-a: unknown key 'device-filte' in line 6; did you mean 'device-filter'?",
        ),
        (config("    - all\n"), "entry 1 must have keys such as 'devices', not 'all'"),
        ("version: v2\nmig-configs: {a: " + NOT_CUT + "}\n", "version must be v1, not 'v2'"),
        (
            "version: v1\nmig-configs: {a+b: " + NOT_CUT + "}\n",
            "line 2: config 'a+b': the name is no valid label value",
        ),
        ('version: v1\nmig-configs: {"\\e[31m": ' + NOT_CUT + "}\n", "config '\\x1b[31m'"),
        (config(OFF + "      device-filter: 20B0\n"), "device-filter must be PCI ids such as '0x233010DE', not '20B0'"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, text: str, problem: str) -> None:
    report = check(tmp_path, text)
    assert not report.ok
    assert len(report.problems) == 1, report.problems
    assert problem in report.problems[0]


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    report = check(tmp_path, "version: v3\nmig-configs:\n  a+b: 1\n  c: 2\n  d: [3]\n")
    assert len(report.problems) == 5


def test_device_filters_choose_the_entries_that_are_proved(tmp_path: Path) -> None:
    """As in the default file of mig-parted, where 1g.10gb means seven on one board and four on another."""
    text = config(
        '    - device-filter: ["0x233010DE", "0x20B210DE"]\n      devices: all\n      mig-enabled: true\n'
        "      mig-devices: {1g.10gb: 7}\n"
        '    - device-filter: "0x20b010de"\n      devices: all\n      mig-enabled: true\n'
        "      mig-devices: {1g.10gb: 4}\n"
    )
    small = check(tmp_path, text)
    assert small.ok
    assert small.findings == [
        "config plan-a: the entry in line 4 is for H100-80GB-SXM5, H100-80GB-PCIe, A100-80GB; not checked",
        "config plan-a, devices 0-7: 1g.10gb@0 1g.10gb@2 1g.10gb@4 1g.10gb@6",
    ]
    large = check(tmp_path, text, gpu_model="A100-80GB")
    assert large.ok
    assert large.findings[1] == "config plan-a: the entry in line 8 is for A100-40GB; not checked"
    wrong = check(tmp_path, text.replace("1g.10gb: 4", "1g.10gb: 5"))
    assert wrong.problems == ["line 8: config plan-a, devices 0-7: 1g.10gb x5: A100-40GB holds at most 4"]


def test_filter_with_an_unknown_id_may_be_for_any_board(tmp_path: Path) -> None:
    text = config(entry("all", "{1g.5gb: 8}") + '      device-filter: ["0xFFFF10DE"]\n')
    assert "holds at most 7" in check(tmp_path, text).problems[0]


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: mig
  namespace: gpu-operator
  labels: {team: a}
data:
  config.yaml: |
    version: v1
    mig-configs:
      plan-a:
        - devices: all
          mig-enabled: true
          mig-devices: {1g.5gb: 7}
      all-disabled: [{devices: all, mig-enabled: false}]
"""


def test_config_map(tmp_path: Path) -> None:
    assert check(tmp_path, CONFIG_MAP).ok
    wrong = check(tmp_path, CONFIG_MAP.replace("1g.5gb: 7", "1g.5gb: 8"))
    assert wrong.problems == ["config.yaml line 4: config plan-a, devices 0-7: 1g.5gb x8: A100-40GB holds at most 7"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  name: mig\n", "", "metadata.name is missing"),
        ("config.yaml: |", "config.yml: |", "data must hold the text 'config.yaml'"),
        ("      all-disabled: [{devices: all, mig-enabled: false}]\n", "", "'all-disabled' is missing"),
    ],
)
def test_config_map_faults(tmp_path: Path, old: str, new: str, problem: str) -> None:
    report = check(tmp_path, CONFIG_MAP.replace(old, new))
    assert not report.ok
    assert any(problem in found for found in report.problems)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "{}", "GresTypes=gpu\n"])
def test_files_of_other_kinds_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceFormatError, match="a mig-parted file"):
        check(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("version: v1\nmig-configs: {a: [{devices: [0, 1\n", "line 3"),  # cut off
        ("version: v1\nmig-configs: !!python/object/apply:os.system [ls]\n", "line 2"),
        ("version: v1\n---\nversion: v1\n", "line 2"),
        ("version: v1\nmig-configs:\n  a: 1\n  a: 2\n", "line 4.*key 'a' stands there twice .first in line 3"),
        ("version: v1\nmig-configs: {[a]: 1}\n", "a key must be a word"),
        ("a: &a {x: 1}\nmig-configs: {<<: *a}\n", "merge keys"),
        ("mig-configs: &a [*a]\n", "recursive"),
        ("mig-configs: &a {b: *a}\n", "recursive"),
        ("mig-configs: *b\n", "undefined alias"),
        ("mig-configs: " + "[" * 5000, "one YAML document"),
        ("mig-configs: " + "9" * 5000, "one YAML document"),
        ("mig-configs: \x07\n", "one YAML document"),
    ],
)
def test_yaml_that_is_not_read(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(TraceFormatError, match=fault):
        check(tmp_path, text)


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    """Nine levels of nine references would be 387 million items if they were written out."""
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
    )
    report = check(tmp_path, f"version: v1\n{bomb}mig-configs:\n  plan-a: *a9\n")
    assert not report.ok
    assert max(map(len, report.problems)) < 200


def test_plain_aliases_are_understood(tmp_path: Path) -> None:
    whole = "[{devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}]"
    text = f"version: v1\nmig-configs:\n  a: &a {whole}\n  b: *a\n"
    assert check(tmp_path, text).findings == [f"config {name}, devices 0-7: 7g.40gb@0" for name in "ab"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="a readable"):
        verify_file(tmp_path / "missing", BOARD)
    with pytest.raises(TraceFormatError, match="a readable"):
        verify_file(tmp_path, BOARD)
    path = tmp_path / "file"
    path.write_bytes("version: v1\nmig-configs: {ä: 1}".encode("utf-16"))
    with pytest.raises(TraceFormatError, match="a readable"):
        verify_file(path, BOARD)
    path.write_bytes(b"#" * 4_000_001)
    with pytest.raises(TraceFormatError, match="at most 4000000 bytes"):
        verify_file(path, BOARD)


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf" + config(entry("all", "{1g.5gb: 7}")).replace("\n", "\r\n").encode())
    assert verify_file(path, BOARD).ok
