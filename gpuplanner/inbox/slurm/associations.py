"""Limits and shares of Slurm's accounts: ``sacctmgr show assoc --parsable2``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.hardware.names import parse_device
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import header_has, looks
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.slurm.fields import TYPED_GPU
from gpuplanner.schemas.readings import QueueQuotas
from gpuplanner.schemas.check import conform, empty

COLUMNS = {
    "Account": Field("tenant"),
    "User": Field("user", nullable=True),
    "Share": Field("share", nullable=True),
    "GrpTRES": Field("tres", nullable=True),
    "Par Name": Field("cohort", nullable=True, optional=True),
}
ROOT = "root"


@looks(header_has(("Account", "User", "Share", "GrpTRES"), "|"))
def read_slurm_associations(paths: Sequence[str | Path]) -> Dataset:
    r"""Read what accounts may hold at most and what share they have: GrpTRES is a ceiling, so nothing is borrowed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "assoc.txt"
    ...     _ = path.write_text("Account|Par Name|User|Share|GrpTRES\nads|web||40|gres/gpu:a100=16\nads||bob|1|\n")
    ...     table = read_slurm_associations([path]).tables["queue_quotas"]
    ...     table.select("tenant", "cohort", "gpu_model", "nominal", "borrow", "weight").rows()
    [('ads', 'web', 'a100', 16.0, 0.0, 40.0)]
    """
    rows = read_rows(
        paths, COLUMNS, source="slurm-associations", dialect=Dialect(separator="|", quotes=False)
    )
    limited = pl.col("tres").fill_null("").str.contains(r"gres/gpu(?::[^=,]+)?=\d")
    shared = pl.col("share").str.contains(r"^[1-9]\d*$").fill_null(value=False)
    skipped = {
        "root stands for the whole cluster, not for a team": pl.col("tenant") == ROOT,
        "of a user: accounts are the teams": pl.col("user").is_not_null(),
        "neither a number of GPUs nor a share": ~limited & ~shared,
    }
    rows = rows.reject(skipped)
    if "cohort" not in rows.good.columns:
        rows = rows.with_columns(cohort=pl.lit(None, pl.String))

    def quotas(good: pl.DataFrame) -> pl.DataFrame:
        found = [row for one in good.iter_rows(named=True) for row in _rows(one)]
        table = pl.DataFrame(found, infer_schema_length=None) if found else empty(QueueQuotas)
        return conform(table, QueueQuotas, where="slurm-associations")

    return assemble_reading(
        rows, "queue_quotas", source="slurm-associations", order=("tenant", "resource"), shape=quotas,
        what="account with a limit or a share", span=(), harmless=tuple(skipped),
    )  # fmt: skip


def _rows(one: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each type of GPU that is limited; of all types together where none is named."""
    parent, share = one["cohort"], one["share"] or ""
    known = {
        "tenant": one["tenant"], "cohort": None if parent == ROOT else parent, "flavor": None, "lend": None,
        "weight": float(share) if share.isdigit() else None,
    }  # fmt: skip
    amounts = dict(item.split("=", 1) for item in (one["tres"] or "").split(",") if "=" in item)
    typed = {name: TYPED_GPU.fullmatch(name) for name in amounts}
    some = {match[1]: float(amounts[name]) for name, match in typed.items() if match}
    if not some:
        whole = float(amounts["gres/gpu"]) if "gres/gpu" in amounts else None
        return [known | {"resource": "gres/gpu", "nominal": whole, "borrow": None if whole is None else 0.0}]
    devices = {word: parse_device(word) for word in some}
    return [
        known
        | {"resource": f"gres/gpu:{word}", "gpu_model": devices[word].board, "profile": devices[word].profile}
        | {"nominal": number, "borrow": 0.0}
        for word, number in some.items()
    ]
