"""The files of a pack on real daemons of Slurm: planned nodes come up, changes are made, given up and taken back."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.report.mig_manager_files import to_mig_parted
from gpuplanner.report.slurm_files import to_slurm_files
from gpuplanner.sizing.request_lines_and_gpu_sharing import GpuRequest, format_request_lines
from tests.report.bundle.real.slurm_cluster import SlurmCluster, missing, until

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
FINE = {"REPARTITION_S": "60", "POLL_S": "0.5", "TIMEOUT_S": "5"}
PRODUCTS = {
    "NVIDIA H100 80GB HBM3": ("H100-80GB-SXM5", "3g.40gb:1,1g.10gb+me:1,1g.10gb:3", "1g.20gb:4"),
    "NVIDIA H100 PCIe": ("H100-80GB-PCIe", "3g.40gb:2", "1g.10gb:7"),
    "NVIDIA A100-SXM4-40GB": ("A100-40GB", "3g.20gb:1,1g.5gb:4", "7g.40gb:1"),
    "NVIDIA A100-PCIE-40GB": ("A100-40GB", "1g.5gb:7", "4g.20gb:1,2g.10gb:1,1g.5gb:1"),
    "NVIDIA A100-SXM4-80GB": ("A100-80GB", "3g.40gb:2", "2g.20gb:3,1g.10gb+me:1"),
    "NVIDIA A100 80GB PCIe": ("A100-80GB", "4g.40gb:1,3g.40gb:1", "1g.10gb:7"),
    "NVIDIA A30": ("A30-24GB", "2g.12gb:2", "2g.12gb:1,1g.6gb:2"),
    "NVIDIA H200": ("H200-141GB", "3g.71gb:1,1g.18gb+me:1", "1g.18gb:7"),
}
"""NVML's names of boards, and two layouts of each."""


class Site:
    """A cluster, and the pack of a plan: all GPUs whole, then one of each node cut, then another cut on n1 alone."""

    def __init__(self, folder: Path, product: str, make_plan: Callable[..., pl.DataFrame], ahead: timedelta) -> None:
        self.gpu_model, first, second = PRODUCTS[product]
        known = re.sub(r"-.*", "", product).lower().replace(" ", "_")
        rows = [
            row
            for node in ("n1", "n2")
            for row in (
                (node, 0, 0, 24, "gpu", False),
                (node, 1, 0, 1, "gpu", False),
                (node, 1, 1, 2, first, True),
                (node, 1, 2, 24, second if node == "n1" else first, node == "n1"),
            )
        ]
        plan = make_plan(rows)
        later = NOW + ahead - timedelta(hours=1) - plan["slot_start"][0]
        self.plan = plan.with_columns(pl.col("slot_start", "slot_end") + later)
        self.pack = folder / "pack"
        self.pack.mkdir()
        files = to_slurm_files(self.plan, self.gpu_model, gres_type=known)
        for name, text in files.items():
            (self.pack / name).write_text(text)
        (self.pack / "mig-parted.yaml").write_text(to_mig_parted(self.plan, self.gpu_model))
        self.scripts = [self.pack / name for name in files if name.startswith("change")]
        self.lines = [self.pack / name for name in files if name.startswith("slurm-")]
        self.type = known
        self.cluster = SlurmCluster(folder / "cluster", ["n1", "n2"], product, 2, f"Gres={self.planned(0)['n1']}")
        for node in self.cluster.nodes:
            (self.cluster.folder / node / "gres.conf").write_text(files["gres.conf"])

    def planned(self, number: int) -> dict[str, str]:
        """Gres of each node in one of the files, in a fixed order."""
        text = self.lines[number].read_text()
        found = re.findall(r"^NodeName=(\S+) Gres=(\S+)$", text, re.MULTILINE)
        return {node: ",".join(sorted(gres.split(","))) for node, gres in found}

    def found(self) -> dict[str, str]:
        return {node: self.cluster.gres(node) for node in self.cluster.nodes}

    def settled(self) -> None:
        """Wait until all nodes have been heard of again, and are idle."""
        until("all nodes idle", lambda: set(self.cluster.states().values()) == {"idle"})

    def change(self, number: int, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        parted = {"PARTED": str(self.pack / "mig-parted.yaml")}
        return self.cluster.run("bash", self.scripts[number], *words, code=code, **FINE | parted | environment)

    def submit(self, gres: str, minutes: int = 5, command: str = "sleep 300", *words: str) -> str:
        flags = ["--parsable", f"--gres={gres}", f"--time={minutes}", "--output=/dev/null", f"--wrap={command}"]
        return self.cluster.run("sbatch", *flags, *words).stdout.strip()

    def state_of(self, job: str) -> str:
        return self.cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%T", code=None).stdout.strip()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, make_plan: Callable[..., pl.DataFrame]) -> Iterator[Site]:
    product, ahead = getattr(request, "param", ("NVIDIA H100 80GB HBM3", timedelta()))
    made = Site(tmp_path, product, make_plan, ahead)
    with made.cluster:
        yield made


@pytest.mark.parametrize("site", [(product, timedelta()) for product in PRODUCTS], indirect=True)
def test_there_and_back_by_the_written_scripts(site: Site) -> None:
    """From whole GPUs to the first layout, to the second, and back: each time all nodes are as planned, and idle."""
    assert site.found() == site.planned(0)
    assert "+NodeName=n1" in site.change(0, "check").stdout
    assert site.found() == site.planned(0)
    for number in (0, 1):
        site.change(number, "apply")
        site.has_converged()
        assert site.found() == site.planned(number + 1)
        site.change(number, "verify")
        assert "nothing to do" in site.change(number, "apply").stdout
    for profile in {*parse_layout(PRODUCTS[site.cluster.product][2]), "gpu"}:
        lines = format_request_lines(
            GpuRequest(profile, 1, 600, gpu_model=as_gpu_model(site.gpu_model)), "sbatch", gres_type=site.type
        )
        script = site.cluster.folder / "job.sh"
        script.write_text(f"#!/bin/sh\n{lines}\nsleep 1\n")
        tested = site.cluster.run("sbatch", "--test-only", script)
        assert re.search(r"Job \d+ to start at .* on nodes n1", tested.stderr), tested.stderr
        job = site.cluster.run("sbatch", "--parsable", "--output=/dev/null", script).stdout.strip()
        shown = lambda job=job: site.cluster.run("scontrol", "show", "job", "-d", job).stdout  # noqa: E731
        until("the job", lambda: "JobState=COMPLETED" in shown())  # noqa: B023
        wanted = site.type if profile == "gpu" else f"{site.type}_{profile}"
        assert f"gres:gpu:{wanted}:1" in shown() or f"gpu:{wanted}:1(IDX" in shown()
    for number in (1, 0):
        site.change(number, "rollback")
        site.has_converged()
        assert site.found() == site.planned(number)
    assert "nothing to roll back" in site.change(0, "rollback").stdout


def test_a_node_that_does_not_empty_is_given_up(site: Site) -> None:
    job = site.submit(f"gpu:{site.type}:2")
    until("the job", lambda: site.state_of(job) == "RUNNING")
    done = site.change(0, "apply", code=75, TIMEOUT_S="1")
    assert f"jobs still running: n1: {job}." in done.stderr
    assert (site.found(), site.state_of(job)) == (site.planned(0), "RUNNING")
    assert site.cluster.states() == {"n1": "allocated", "n2": "idle"} or not any(
        "drain" in state for state in site.cluster.states().values()
    )


@pytest.mark.parametrize("site", [("NVIDIA H100 80GB HBM3", timedelta(hours=2))], indirect=True)
def test_a_reservation_keeps_long_jobs_away_and_short_ones_not(site: Site) -> None:
    """It begins when the change is planned: until then jobs start that end by then."""
    site.change(0, "reserve")
    (found,) = site.cluster.run("scontrol", "--oneliner", "show", "reservation").stdout.splitlines()
    assert f"StartTime={NOW + timedelta(hours=2):%Y-%m-%dT%H:%M:%S} " in found
    assert "Flags=MAINT,IGNORE_JOBS" in found
    short, long = (site.submit(f"gpu:{site.type}:1", minutes) for minutes in (10, 300))
    until("the short job", lambda: site.state_of(short) == "RUNNING")
    assert site.state_of(long) == "PENDING"
    site.change(0, "cancel")
    until("the long job", lambda: site.state_of(long) == "RUNNING")
    past = site.change(0, "reserve", "2020-01-01T00:00:00Z", code=1)
    assert "it is none of the planned times" in past.stderr


def test_a_planned_time_that_has_passed_is_not_reserved(site: Site) -> None:
    assert "this time is over" in site.change(0, "reserve", code=1).stderr
    assert "No reservations" in site.cluster.run("scontrol", "show", "reservation").stdout


def test_lines_that_are_added_instead_of_put_in_are_fatal(site: Site) -> None:
    """Why install-gres.sh rewrites: the obvious way ends the controller."""
    with site.cluster.conf.open("a") as conf:
        conf.write(site.lines[1].read_text())
    done = site.cluster.run("slurmctld", "-D", code=None)
    assert done.returncode
    assert "Duplicated NodeName" in done.stderr + done.stdout


def test_types_that_no_device_has_drain_the_node(site: Site) -> None:
    """The negative control: devices are really compared."""
    text = site.scripts[0].read_text().replace("nvidia_h100_80gb_hbm3_3g", "nvidia_h200_3g")
    site.scripts[0].write_text(text)
    site.lines[1].write_text(site.lines[1].read_text().replace("nvidia_h100_80gb_hbm3_3g", "nvidia_h200_3g"))
    done = site.change(0, "apply", code=1, REPARTITION_S="5")
    assert "+INVALID_REG" in done.stderr
    site.change(0, "rollback")
    site.has_converged()
    assert site.found() == site.planned(0)
