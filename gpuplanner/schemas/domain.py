"""The tables that pass between the rooms. All times are UTC instants; units stand in the names."""

from __future__ import annotations

import itertools

import dataframely as dy
import polars as pl

from gpuplanner.schemas.kinds import count as _count
from gpuplanner.schemas.kinds import decimal as _decimal
from gpuplanner.schemas.kinds import meaning as _meaning
from gpuplanner.schemas.kinds import number as _number
from gpuplanner.schemas.kinds import text as _text
from gpuplanner.schemas.kinds import time as _time
from gpuplanner.schemas.readings import READING_TABLES
from gpuplanner.schemas.vocabulary import BUCKETS, JOB_STATES

MAX_GPUS_PER_JOB = 100_000
"""More GPUs than any machine has: a count above it is a fault of the source, not a job."""


class Jobs(dy.Schema):
    """One job attempt a row. Missing stays missing: a null is never read as zero."""

    job_id = _text("identity in the source")
    attempt = dy.Int32(nullable=False, min=1, metadata=_meaning("1 for the first try"))
    tenant = _text("who pays: account, virtual cluster, namespace")
    user = _text("who submitted", nullable=True)
    job_class = _text(
        "pretraining, fine-tuning, evaluation, inference, interactive; service: runs until somebody ends it",
        nullable=True,
    )
    job_name = _text("name that the user gave it", nullable=True)
    partition = _text("partition or queue that it was submitted to", nullable=True)
    tier = _text("service tier: guaranteed, standard, best_effort", nullable=True)
    submit_time = _time("when the job was submitted")
    eligible_time = _time(
        "from when on it could have started, but for capacity and the order of the queue; null where it is not known",
        nullable=True,
    )
    start_time = _time("when it first held its GPUs; null if it never did", nullable=True)
    end_time = _time("when it gave them back; null if it still runs or waits", nullable=True)
    state = dy.Enum(JOB_STATES, nullable=False, metadata=_meaning("state at the end of the observation"))
    gpus = _number(
        "GPUs held, or asked for if it never started, in whole boards: a MIG instance counts its compute slices "
        "over those of its board, a shared GPU the share; null where it is not known",
        "GPU",
        nullable=True,
        high=MAX_GPUS_PER_JOB,
    )
    gpus_by_memory = _number(
        "the same by memory: a MIG instance counts its memory slices over those of its board; null where it is "
        "not known",
        "GPU",
        nullable=True,
        high=MAX_GPUS_PER_JOB,
    )
    instances = _count(
        "MIG instances held, or asked for if it never started; null if it holds whole GPUs", nullable=True
    )
    gpu_model = _text(
        "board, as the catalogue names it; in the words of the source where it is not known", nullable=True
    )
    board_named = dy.Bool(
        nullable=True,
        metadata=_meaning(
            "whether the request named a board, or took any that was free; null where the source does not tell"
        ),
    )
    profile_requested = _text("MIG profile asked for; null if none was named", nullable=True)
    nodes = _count("number of nodes", nullable=True)
    node_list = _text("names of the nodes, as the source writes them", nullable=True)
    time_limit_s = _number("run-time limit", "s", nullable=True)
    sm_activity = _number("mean SM activity of the GPUs held", "0-1", nullable=True, high=1.0)
    memory_peak_gib = _number("peak memory on the fullest GPU held", "GiB", nullable=True)
    quarantined = _text(
        "rule by which the job cannot be true beside the others: it is left out of every figure; null if it is "
        "believed",
        nullable=True,
    )

    @dy.rule()
    def start_not_before_submit(cls) -> pl.Expr:
        """start_time is at or after submit_time."""
        return pl.col("start_time") >= pl.col("submit_time")

    @dy.rule()
    def end_not_before_start(cls) -> pl.Expr:
        """end_time is at or after start_time."""
        return pl.col("end_time") >= pl.col("start_time")


class Samples(dy.Schema):
    """One GPU or MIG instance from one reading to the next."""

    time = _time("when the sample was taken")
    until = _time(
        "until when it holds: the next sample of the device, before a gap one usual step later; null where samples are "
        "read lazily",
        nullable=True,
    )
    node = _text("node name")
    gpu = _count("index of the GPU on its node")
    instance = _count("MIG instance on that GPU; null for the whole GPU", nullable=True)
    profile = _text("MIG profile of the instance; null for the whole GPU", nullable=True)
    job_id = _text(
        "job that held it, or several that shared it, joined by ','; null if none or not known", nullable=True
    )
    job_evidence = _text(
        "how the job is known: stated by the source; shared: several stated by it; whole_node; together: several jobs "
        "of the node held it and no one can tell which; none",
        nullable=True,
    )
    sm_activity = _number("share of time and SMs with a warp resident", "0-1", nullable=True, high=1.0)
    tensor_activity = _number("share of cycles the tensor pipe was busy", "0-1", nullable=True, high=1.0)
    dram_activity = _number("share of cycles device memory was busy", "0-1", nullable=True, high=1.0)
    sm_occupancy = _number(
        "share of the warps that could be resident that were, over the SMs", "0-1", nullable=True, high=1.0
    )
    nvlink_gb_s = _number("NVLink traffic, both directions", "GB/s", nullable=True)
    pcie_gb_s = _number("PCIe traffic, both directions", "GB/s", nullable=True)
    memory_used_gib = _number("device memory in use", "GiB", nullable=True)
    power_w = _number("board power", "W", nullable=True)
    energy_counter_j = _number(
        "energy that the board has drawn since its driver was loaded: a counter that starts anew at 0",
        "J",
        nullable=True,
    )
    xid = _count("number of the driver's last XID error on the board; 0 if none", nullable=True)
    activity_source = _text("rung of the metric ladder: profiling, engine, legacy, none")


LATER_COUNTERS = ("sm_occupancy", "energy_counter_j", "xid")
"""Columns of ``Samples`` that older folders lack; where nobody read them they are not written either."""


class Inventory(dy.Schema):
    """One node a row."""

    node = _text("node name")
    gpu_model = _text(
        "board, as the catalogue names it; in the words of the source where it is not known", nullable=True
    )
    gpus = _count("GPUs installed")
    rack = _text("rack name", nullable=True)
    nvlink_domain = _text("GPUs that reach each other over NVLink", nullable=True)
    ownership = _text("owned, reserved, on_demand, spot", nullable=True)
    installed = _time("when the node came into service; null if before the observation", nullable=True)
    retired = _time("when it went; null if it is still there", nullable=True)
    mig_enabled = dy.Bool(nullable=True, metadata=_meaning("MIG mode is on"))
    layouts = _text("layout of each GPU, joined by ';'", nullable=True)
    shares = _text("parts that jobs may hold of each GPU: 'shard:4', 'mps:100'; null if none", nullable=True)


class Demand(dy.Schema):
    """One series at one slot, in the long form that forecasting libraries read."""

    unique_id = _text("series: tenant/profile")
    ds = _time("start of the slot")
    y = _number("mean number of instances held or wanted during the slot", "instances")
    tenant = _text("who asks")
    profile = _text("MIG profile, or 'gpu' for a whole GPU")
    gpu_model = _text("board that the profile belongs to", nullable=True)
    tier = _text("service tier", nullable=True)


class Forecast(dy.Schema):
    """One series, slot and model."""

    unique_id = _text("series: tenant/profile")
    ds = _time("start of the slot")
    model = _text("name of the model")
    mean = _number("point forecast", "instances")
    q05 = _number("5 % quantile", "instances")
    q10 = _number("10 % quantile", "instances")
    q25 = _number("25 % quantile", "instances")
    q50 = _number("median", "instances")
    q75 = _number("75 % quantile", "instances")
    q90 = _number("90 % quantile", "instances")
    q95 = _number("95 % quantile", "instances")
    cutoff = _time("end of the history that the model saw")

    @dy.rule()
    def quantiles_ordered(cls) -> pl.Expr:
        """Quantiles do not cross."""
        names = ["q05", "q10", "q25", "q50", "q75", "q90", "q95"]
        return pl.all_horizontal(pl.col(low) <= pl.col(high) for low, high in itertools.pairwise(names))


class LayoutPlan(dy.Schema):
    """One GPU over one range of slots in which its layout stays the same."""

    node = _text("node name")
    gpu = _count("index of the GPU on its node")
    slot_start = _time("start of the range")
    slot_end = _time("end of the range")
    layout = _text("profiles on the GPU, '3g.40gb:1,1g.10gb:3'; 'gpu' if not cut; 'off' if not needed")
    changed = dy.Bool(nullable=False, metadata=_meaning("the GPU was cut anew at slot_start"))
    parked = _text(
        "layout that the GPU keeps while it is 'off'; null if it is released, or on", nullable=True
    )


class Ledger(dy.Schema):
    """Installed GPU-time of one tenant, board and hour in one bucket. Tenant '-' is nobody."""

    tenant = _text("who held the GPUs; '-' where nobody did")
    gpu_model = _text("board, as jobs and inventory name it", nullable=True)
    hour = _time("start of the hour")
    bucket = dy.Enum(BUCKETS, nullable=False, metadata=_meaning("where the time went"))
    gpu_hours = _number("GPU-hours", "GPU h")


class Costs(dy.Schema):
    """One charge line, with the columns that FOCUS 1.2 asks for; own fields begin with ``x_``."""

    BillingPeriodStart = _time("first instant of the billing period")
    BillingPeriodEnd = _time("first instant after the billing period")
    ChargePeriodStart = _time("first instant of what is charged")
    ChargePeriodEnd = _time("first instant after what is charged")
    BillingAccountId = _text("account that is billed: the fleet")
    BillingAccountName = _text("its name", nullable=True)
    SubAccountId = _text("tenant; 'nobody' for GPU-time that nobody held")
    SubAccountName = _text("tenant; 'nobody' for GPU-time that nobody held")
    ChargeCategory = _text("Usage, Tax, Credit, Adjustment, Purchase")
    ChargeClass = _text("Correction, where the line mends an earlier bill", nullable=True)
    ChargeDescription = _text("what the line is for")
    ServiceCategory = _text("FOCUS service category")
    ServiceName = _text("name of the service")
    ProviderName = _text("who provides it")
    PublisherName = _text("who made it")
    InvoiceIssuerName = _text("who bills it")
    PricingCategory = _text("Standard, Committed, Dynamic, Other")
    PricingQuantity = _number("amount priced", "GPU h")
    PricingUnit = _text("unit of PricingQuantity")
    ListUnitPrice = _number("list price of one unit; null if none is known", "BillingCurrency", nullable=True)
    ListCost = _decimal("at list price, exact; as EffectiveCost if none is known", "BillingCurrency")
    ContractedCost = dy.Decimal(18, 2, nullable=False, metadata=_meaning("as agreed", "BillingCurrency"))
    EffectiveCost = dy.Decimal(18, 2, nullable=False, metadata=_meaning("what it costs", "BillingCurrency"))
    BilledCost = dy.Decimal(18, 2, nullable=False, metadata=_meaning("what is billed", "BillingCurrency"))
    BillingCurrency = _text("ISO 4217 code")
    x_GpuModel = _text("board", nullable=True)
    x_Bucket = _text("what was done with the time: a bucket of the ledger, the reason where nobody held it")
    x_Ownership = _text("who pays for the board: owned, reserved, on_demand, spot; 'not stated'")
    x_EnergyKwh = _number("energy, facility included; null if not known", "kWh", nullable=True)
    x_CarbonKg = _number("carbon of the grid at the place; null if not known", "kg CO2e", nullable=True)
    x_CarbonMarketKg = _number("carbon by contract; null if not known", "kg CO2e", nullable=True)
    x_CarbonEmbodiedKg = _number(
        "share of the making of the board; null if not known", "kg CO2e", nullable=True
    )


TABLES: dict[str, type[dy.Schema]] = {
    "jobs": Jobs,
    "samples": Samples,
    "inventory": Inventory,
    "demand": Demand,
    "forecast": Forecast,
    "layout_plan": LayoutPlan,
    "ledger": Ledger,
    "costs": Costs,
    **READING_TABLES,
}
