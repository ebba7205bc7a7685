"""How well the speed of a job on a MIG slice is told from what was seen on the whole GPU."""

from __future__ import annotations

import polars as pl

from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import figure, figures_of, share_over_units
from gpuplanner.lab.speed import accuracy, held_out, measurements, relative_speeds
from gpuplanner.sizing.speed.boundness import EVIDENCE

WITHIN = 0.10
"""Error that a prediction may have."""
NEEDS = ("miso_mig", "parvagpu/prof_data")
WORDS = {"second profile": "a second slice", "telemetry": "telemetry of the whole GPU"}


def measure(conditions: Conditions) -> Measured:
    """Predict each half of the models from a fit to the other half."""
    speeds = relative_speeds(measurements(conditions.folder()).filter(processes=1))
    near = (pl.col("predicted") / pl.col("speed") - 1).abs() <= WITHIN
    rows = held_out(speeds).with_columns(near=near)
    told = [evidence for evidence in EVIDENCE if evidence != "nothing"]
    figures = [_within(evidence, rows.filter(evidence=evidence), conditions.seed) for evidence in told]
    by_evidence = accuracy(rows, "evidence")
    median = dict(by_evidence.select("evidence", "median_error").iter_rows())
    why = (
        "Models that the fit has not seen; median error "
        + ", ".join(f"{median[evidence]:.1%} from {WORDS.get(evidence, evidence)}" for evidence in told)
        + f". Without any evidence it is {median['nothing']:.0%}."
    )
    by_size = accuracy(rows, "evidence", "source", "compute_slices")
    return Measured.by(
        figures_of(figures),
        why,
        tables={"by kind of evidence": by_evidence, "by size of the slice": by_size},
        remarks=(
            "All was measured on A100, on few models: the intervals are those of drawing the models anew.",
            "MISO itself profiles under MPS and learns the speeds; this is a law of two parameters a slice.",
        ),
    )


def _within(evidence: str, rows: pl.DataFrame, seed: int) -> dict[str, object]:
    """Share of the predictions from one kind of evidence that are near enough."""
    models = rows.group_by("source", "model", maintain_order=True).agg(pl.col("near").sum(), of=pl.len())
    low, high = share_over_units(models["near"].to_list(), models["of"].to_list(), seed=seed)
    share = 100 * float(models["near"].sum()) / float(models["of"].sum())
    name = f"from {WORDS.get(evidence, evidence)} ({models.height} models)"
    return figure(name, "% within 10 %", share, claimed=(50.0, None), interval=(100 * low, 100 * high))


CLAIM = PublishedClaim(
    name="slice-speed",
    title="Speed on slices",
    words="The speed of a job on a MIG slice can be told from what was seen on the whole GPU, or from one other slice, "
    "in half of the cases within 10 %.",
    source="What planners of MIG slices rest on, MISO (Li et al., SoCC 2022) first; the border of 10 % is ours",
    on="MISO's training steps and ParvaGPU's inference on slices of A100, each half of the models from the other half",
    takes="some seconds",
    measure=measure,
    needs=NEEDS,
)
