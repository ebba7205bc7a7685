"""Accounts of Slurm with limits and shares: quotas that the rest of the walk reads."""

from __future__ import annotations

from gpuplanner.decision.sharing_rules import convert_queue_quotas
from gpuplanner.hardware.gpu_models import load_any_gpu_model
from gpuplanner.ingest.source_registry import read

TEXT = """\
Cluster|Account|Par Name|User|Share|GrpTRES
c|root|||1|
c|vision|research||40|cpu=512,gres/gpu=24,gres/gpu:a100=16,gres/gpu:l40s=8
c|vision||alice|parent|
c|chem|root||10|gres/gpu=4
c|guests|root||5|
c|empty|root||parent|cpu=8
"""


def test_limits_of_accounts_are_ceilings_by_board_and_shares_are_weights(tmp_path):
    path = tmp_path / "assoc.txt"
    path.write_text(TEXT)
    found = read("auto", path)
    assert found.provenance["source"] == "slurm-associations"
    table = found.tables["queue_quotas"]
    assert table.select("tenant", "cohort", "gpu_model", "nominal", "borrow", "weight").rows() == [
        ("chem", None, None, 4.0, 0.0, 10.0),
        ("guests", None, None, None, None, 5.0),
        ("vision", "research", "a100", 16.0, 0.0, 40.0),
        ("vision", "research", "l40s", 8.0, 0.0, 40.0),
    ]
    assert found.rejects.height == 3
    rules = convert_queue_quotas(table, load_any_gpu_model("L40S"))
    assert {one.name: one.gpus for one in rules.teams} == {"chem": 4.0, "guests": None, "vision": 8.0}
    assert rules.quota_of("vision").weight == 40.0
