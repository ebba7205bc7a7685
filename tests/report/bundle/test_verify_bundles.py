"""``verify`` of every bundle that is written: as it is, with a file of somebody else, and from any folder above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import replace_directory
from gpuplanner.report.bundle_export import BUNDLE_FOLDER_MARK
from gpuplanner.report.change_bundle_parts import PageText
from gpuplanner.report.plan_and_bundle_verification import verify_any
from tests.report.bundle import test_pack as packs

BUNDLES = {
    **{name: packs.fixed(name) for name in ("mig-manager", "nvidia-smi", "slurm", "mig-parted", "dra")},
    **{f"pools {name}": packs.pools(name) for name in ("mig-manager", "autoscaler", "slurm")},
    "partitioned per job": packs.jobs_cut(),
    "released": packs.released_alone(),
}


def written(name: str, out: Path) -> Path:
    """The bundle of these rules, as a command writes it."""
    with replace_directory(out, mark=BUNDLE_FOLDER_MARK) as folder:
        packs.packed(BUNDLES[name]).write(folder)
    return out


@pytest.mark.parametrize("name", BUNDLES)
def test_every_bundle_holds_and_a_foreign_file_is_named(name, tmp_path):
    out = written(name, tmp_path / "export")
    report = verify_any(out, None)
    assert report.ok, report.problems
    assert report.findings[0].endswith(f"for {packs.BOARD}")
    (out / "extra.sh").write_text("rm -rf /")
    (out / "n3.before").write_text("all-disabled\n")  # as a change script keeps the earlier layout
    assert verify_any(out, None).problems == ["extra.sh: not part of the export; remove it"]


def test_a_bundle_deep_in_a_folder_is_checked_by_the_manifest_above(tmp_path):
    """As ``start --no-page`` writes those of several GPU pools: one manifest for all."""
    with replace_directory(tmp_path / "out", mark=FolderMark("fleet.txt", "a fleet")) as folder:
        packs.packed(BUNDLES["pools slurm"]).write(folder / "pools" / "H100" / "export")
    bundle = tmp_path / "out" / "pools" / "H100" / "export"
    assert verify_any(bundle, None).ok
    script = bundle / "slurm" / "resume.sh"
    script.write_text("# by hand")
    problem = "slurm/resume.sh: edited since export; this file has no other check"
    assert verify_any(bundle, None).problems == [problem]
    assert verify_any(script, None).problems == ["edited since export; this file has no other check"]


def test_a_folder_of_bundles_is_checked_bundle_by_bundle(tmp_path):
    """The folder of ``watch`` has no manifest, its bundles have."""
    for name in ("slurm", "mig-parted"):
        written(name, tmp_path / name)
    assert verify_any(tmp_path, None).ok
    (tmp_path / "slurm" / "slurm" / "change.sh").unlink()
    assert verify_any(tmp_path, None).problems == ["slurm/slurm/change.sh: missing"]


def test_a_copy_without_its_manifest_is_compared_by_its_checksums(tmp_path):
    packs.packed(BUNDLES["slurm"]).write(tmp_path)
    with pytest.raises(ScenarioError, match="A copy has none: run sha256sum --check SHA256SUMS"):
        verify_any(tmp_path, None)


def test_other_results_beside_a_bundle_are_no_foreign_files(tmp_path):
    out = written("slurm", tmp_path / "export")
    written("mig-parted", out / "earlier")
    assert verify_any(out, None).ok


def test_teams_named_after_gpu_models_do_not_hide_that_of_the_bundle(tmp_path):
    words = PageText("Release nodes of team T4 and of A100-80GB.", "some nodes MIG-partitioned once")
    bundle = packs.packed(BUNDLES["mig-parted"])
    text = bundle.files["README.md"].replace(packs.TOLD.sentence, words.sentence)
    assert words.sentence in text
    bundle.files["README.md"] = text
    with replace_directory(tmp_path / "out", mark=BUNDLE_FOLDER_MARK) as folder:
        bundle.write(folder)
    assert verify_any(tmp_path / "out", None).ok


def test_nodes_of_sixteen_gpus_are_checked_as_such(tmp_path):
    text = "NodeName=n1 Gres=gpu:tesla_v100:16\n"
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    assert verify_any(path, "V100-SXM2-32GB").ok
    path.write_text("NodeName=n1 Gres=gpu:a100_1g.5gb:57\n")
    assert not verify_any(path, "A100-40GB").ok


def test_an_absent_file_is_named_before_a_gpu_model_is_wanted(tmp_path):
    with pytest.raises(ScenarioError, match=r"none\.yaml: expected a plan.*got no such file"):
        verify_any(tmp_path / "none.yaml", None)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ScenarioError, match="no such file"):
        verify_any(loop, None)
