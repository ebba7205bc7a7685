"""What a row does not say and matters: assumed and said so, with the other answers, which a bound covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuplanner.sizing.predict.job import TrainingJob
from gpuplanner.sizing.predict.methods import TARGETS
from gpuplanner.sizing.predict.observed import HEADROOM
from gpuplanner.sizing.predict.overheads import GIB
from gpuplanner.sizing.predict.peak import peak_gib
from gpuplanner.sizing.predict.reading.worded import WordedRow
from gpuplanner.sizing.predict.static import frozen_bytes, stage_params, trained_bytes
from gpuplanner.sizing.predict.tools import OWN_LOOPS


def assumed(row: WordedRow, job: TrainingJob) -> None:
    """Say what was not stated and matters: recompute, optimiser, precision."""
    if not row.words["recompute"] and row.tool in OWN_LOOPS:
        row.missing.append(f"activation_checkpointing: assumed {job.recompute}")
    if not row.words["optimizer"] and (row.full or row.tool in OWN_LOOPS):
        row.missing.append(f"optimizer: assumed {job.optimizer}")
    if not row.words["precision"]:
        row.missing.append(f"precision: assumed {job.regime}")
    elif row.tool in OWN_LOOPS and _bare(row) and row.full and job.regime in ("unsaid", "pure", "amp"):
        row.missing.append(f"precision: whether parameters are fp32 is not said; assumed {_SAID[job.regime]}")
    if row.words["packing"] == "no":
        row.missing.append("packing: sequences that are not full were taken as full")


_SAID = {"unsaid": "the middle", "pure": "not", "amp": "so"}


def _bare(row: WordedRow) -> bool:
    """Whether a type is named without saying of what."""
    return row.words["precision"] in ("", "bf16", "fp16", "fp8")


def placed(
    row: WordedRow, job: TrainingJob, most: float | None
) -> tuple[TrainingJob, tuple[TrainingJob, ...]]:
    """The job under the likeliest answer to what is open, and under the others, one changed at a time.

    A recipe of its tool leaves open what it saves with, and who has room does not save: of its answers the largest that
    fits the board is taken. Of a tool that is not known the assumed answer is taken, unless only others fit.
    """
    words, changes = row.words, list[dict[str, Any]]()
    recipe = job.regime == "pure" and row.tool not in OWN_LOOPS and not words["recompute"] and not job.offload
    if row.full and recipe and not words["optimizer"] and job.step_in_backward:
        row.missing.append(
            "step in backward and paged states: assumed as in the tool's recipe, or as the board allows"
        )
        changes += [{"step_in_backward": False}, {"step_in_backward": False, "optimizer": "adamw8bit"}]
    if recipe and not job.quantization and job.recompute == "full" and words["compile"]:
        row.missing.append(
            "activation_checkpointing: assumed as in the tool's recipe, or as the board allows"
        )
        changes.append({"recompute": "none"})
    if job.regime == "unsaid" or (row.tool in OWN_LOOPS and row.full and _bare(row) and job.regime == "pure"):
        changes += [{"regime": "pure"}, {"regime": "amp"}][job.regime == "pure" :]
        if not words["optimizer"]:
            changes += [{"regime": "pure", "optimizer": "adamw8bit"}, {"regime": "pure", **_SAVING}]
    if row.tool in OWN_LOOPS and job.model.gelu_new:
        changes.append({"composed_gelu": True})
    if row.tool in OWN_LOOPS and job.loss_chunks > 1:
        changes.append({"loss_chunks": 1})
    if row.tool in OWN_LOOPS and row.method.of_rank and not row.method.targets and job.model.hidden:
        largest = job.lora_rank if "lora_rank" in row.text else _LARGE_RANK
        targets = job.lora_targets if "lora_targets" in row.text else TARGETS
        changes.append({"lora_targets": targets, "lora_rank": min(largest, job.model.hidden)})
    if row.tool in OWN_LOOPS and not words["recompute"] and not job.quantization:
        changes.append({"recompute": "none" if job.recompute == "full" else "full"})
    _more_unsaid(row, job)
    ways = [job, *(replace(job, **change) for change in changes)]
    if len(ways) == 1 or most is None or (row.tool in OWN_LOOPS and sum(peak_gib(job)) <= most):
        return job, tuple(ways[1:])
    sizes = [(sum(peak_gib(way)), place) for place, way in enumerate(ways)]
    _, place = max((one for one in sizes if one[0] <= most * (1 - HEADROOM)), default=(0.0, 0))
    return ways[place], tuple(way for at, way in enumerate(ways) if at != place)


_LARGE_RANK = 64
"""The largest rank that recipes of the tools take unasked."""
_SAVING = {"optimizer": "pagedadamw8bit", "step_in_backward": True, "recompute": "full"}
"""All that a full training of one GPU can save with."""


def _more_unsaid(row: WordedRow, job: TrainingJob) -> None:
    """What else a recipe of its tool leaves open, by columns alone."""
    words = row.words
    pure = job.regime == "pure" and row.tool not in OWN_LOOPS and not job.offload
    if pure and job.recompute == "full" and job.compiled and words["compile"] and words["optimizer"]:
        row.missing.append("off-load of activations, step in backward: not stated, assumed neither")
    if pure and row.full and words["recompute"] == "none" and not job.compiled and not words["packing"]:
        row.missing.append("packing: assumed that every sequence is full")


def static_gib(job: TrainingJob) -> float:
    """GiB that lie on a GPU throughout: what cannot fit without sharding."""
    stage = stage_params(job.model, job.tp, job.pp)
    return (frozen_bytes(job, stage) if job.frozen else trained_bytes(job, stage)) / GIB
