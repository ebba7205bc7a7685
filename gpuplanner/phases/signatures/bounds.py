"""The rules: what a GPU waits for, from the means of its profiling counters, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from gpuplanner.phases.signatures.facts import load_thresholds

BOUNDS = (
    "compute",
    "memory-bandwidth",
    "interconnect",
    "input",
    "launch",
    "mixed",
    "idle",
    "cannot tell",
)
"""What a job can be bound by."""
FIELDS = ("sm_activity", "tensor_activity", "dram_activity", "pcie_gb_s", "nvlink_gb_s")
"""Counters of the rules; a null is not read, never zero."""


@dataclass(frozen=True)
class Signature:
    """What a job waits for.

    - ``bound``: One of :data:`BOUNDS`.
    - ``evidence``: The figures that decided, against their thresholds.
    """

    bound: str
    evidence: str


@dataclass(frozen=True)
class Counters:
    """Means of the profiling counters over the readings in which they were read; None is not read, never zero.

    Parameters
    ----------
    sm_activity, tensor_activity, dram_activity : float, optional
        Shares of time [0-1].
    pcie_gb_s, nvlink_gb_s : float, optional
        Traffic of both directions [GB/s].
    sm_occupancy : float, optional
        Warps over what multiprocessors hold [0-1].
    idle_share : float, optional
        Share of the readings with less SM activity than ``idle_sm``.
    power_share : float, optional
        Of the power limit.
    activity_source : str, optional
        Rung of the metric ladder.

    Examples
    --------
    >>> Counters(sm_activity=0.9, activity_source="profiling").tensor_activity is None
    True
    """

    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    pcie_gb_s: float | None = None
    nvlink_gb_s: float | None = None
    sm_occupancy: float | None = None
    idle_share: float | None = None
    power_share: float | None = None
    activity_source: str | None = None


COUNTERS = tuple(field.name for field in fields(Counters))


def signature(
    means: Counters,
    *,
    gpus: int = 1,
    nvlink_peak_gb_s: float | None = None,
) -> Signature:
    """Name what GPUs wait for.

    The first rule that holds wins: idle; memory-bandwidth, where memory is nearer to its reachable peak than
    the tensor cores; compute, where tensor cores or multiprocessors are busy; input, where the GPU is quiet
    and the host link is not, or it works in bursts with waits between; interconnect, where multiprocessors
    are used ineffectively and the links between GPUs carry much; launch, where they are used ineffectively
    and nothing else is busy; else mixed, as where the links carry some traffic but are far from their limit.
    A rule whose fields were not read does not hold, and what comes after it then cannot be told either, since
    it rests on that rule having failed.

    Parameters
    ----------
    means : Counters
        Over the readings of a job.
    gpus : int
        GPUs of the job: one has nobody to exchange with.
    nvlink_peak_gb_s : float, optional
        NVLink bandwidth of the board, both directions.

    Returns
    -------
    Signature
        The bound and its evidence.

    References
    ----------
    NVIDIA, DCGM User Guide, Feature Overview, Profiling Metrics. Williams, Waterman, Patterson, "Roofline", CACM
    52(4), 2009, doi 10.1145/1498765.1498785: the resource nearest to its peak bounds.

    Examples
    --------
    >>> signature(Counters(0.9, tensor_activity=0.6, dram_activity=0.3, activity_source="profiling")).bound
    'compute'
    >>> signature(Counters(0.99, activity_source="legacy"))
    Signature(bound='cannot tell', evidence='only the legacy counter was read: 0.99 of the time some kernel ran,
    on however few multiprocessors')
    """
    limit = {name: row.value for name, row in load_thresholds().items()}
    rung, sm, tensor, dram = (
        means.activity_source,
        means.sm_activity,
        means.tensor_activity,
        means.dram_activity,
    )
    pcie = means.pcie_gb_s
    if rung != "profiling" or sm is None:
        return Signature("cannot tell", _no_profiling(rung, sm))
    told = f"SM activity {sm:.2g}"
    if sm < limit["idle_sm"] and (pcie is None or pcie < limit["heavy_pcie_gb_s"]):
        return Signature("idle", f"{told} < {limit['idle_sm']:g}")
    if tensor is None or dram is None:
        absent = [name for name, value in (("tensor", tensor), ("DRAM", dram)) if value is None]
        return Signature("cannot tell", f"{told}; {' and '.join(absent)} activity not read")
    told += f", tensor {tensor:.2g}, DRAM {dram:.2g}" + _extras(means, limit)
    near_tensor, near_dram = tensor / limit["tensor_peak"], dram / limit["dram_peak"]
    if dram >= limit["bound_dram"] and near_dram >= near_tensor:
        peak = f"{_percent(near_dram)} of the DRAM activity that can be reached, {_percent(near_tensor)} of the tensor"
        return Signature("memory-bandwidth", f"{told}; {peak}")
    busy = sm >= limit["ineffective_sm"] and tensor >= limit["some_tensor"]
    if tensor >= limit["heavy_tensor"] or sm >= limit["effective_sm"] or busy:
        return Signature(
            "compute", f"{told}; {_percent(near_tensor)} of the tensor activity that can be reached"
        )
    return _waiting(told, sm, means, gpus, nvlink_peak_gb_s, limit)


def _waiting(
    told: str,
    sm: float,
    means: Counters,
    gpus: int,
    nvlink_peak_gb_s: float | None,
    limit: Mapping[str, float],
) -> Signature:
    """The rules for GPUs that are not busy themselves."""
    pcie, nvlink, idle_share = means.pcie_gb_s, means.nvlink_gb_s, means.idle_share
    quiet = sm < limit["waiting_sm"]
    if quiet and idle_share is not None and idle_share >= limit["waiting_share"]:
        host = "not read" if pcie is None else f"{pcie:.2g} GB/s"
        return Signature("input", f"{told}; idle in {_percent(idle_share)} of the readings; PCIe {host}")
    if quiet and pcie is not None and pcie >= limit["heavy_pcie_gb_s"]:
        heavy = limit["heavy_pcie_gb_s"]
        return Signature("input", f"{told}; PCIe {pcie:.2g} GB/s >= {heavy:g} while the GPU is quiet")
    if quiet and pcie is None:
        return Signature("cannot tell", f"{told}; PCIe traffic not read")
    if sm >= limit["ineffective_sm"]:
        return Signature("mixed", f"{told}; no resource is near its limit")
    low = f"{told}; SM activity < {limit['ineffective_sm']:g} is likely ineffective"
    if gpus > 1:
        if nvlink is None or nvlink_peak_gb_s is None:
            which = "NVLink traffic not read" if nvlink is None else "NVLink bandwidth of the board not known"
            return Signature("cannot tell", f"{low}; {which}")
        share = nvlink / nvlink_peak_gb_s
        low += f"; NVLink {nvlink:.3g} GB/s = {_percent(share)} of {nvlink_peak_gb_s:g}"
        if share >= limit["heavy_nvlink_share"]:
            return Signature("interconnect", low)
        if share > limit["light_nvlink_share"]:
            return Signature("mixed", f"{low}, which is neither its limit nor nothing")
    return Signature("launch", f"{low}; no other resource is busy")


def _no_profiling(rung: object, activity: float | None) -> str:
    if rung == "legacy" and activity is not None:
        return (
            f"only the legacy counter was read: {activity:.2g} of the time some kernel ran, "
            "on however few multiprocessors"
        )
    if rung == "engine" and activity is not None:
        return f"only engine activity {activity:.2g} was read, which one small kernel raises"
    return "SM activity not read"


def _extras(means: Counters, limit: Mapping[str, float]) -> str:
    """What no rule needs but a reader wants to know."""
    occupancy, power = means.sm_occupancy, means.power_share
    text = "" if occupancy is None else f", occupancy {occupancy:.2g}"
    if power is None:
        return text
    low = " (too little for a busy GPU)" if power < limit["low_power_share"] else ""
    return f"{text}, power {_percent(power)} of the limit{low}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
