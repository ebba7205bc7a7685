"""Tables of what the inbox reads that is not jobs: requests, occupancy, quotas, series, bills."""

from __future__ import annotations

import dataframely as dy

from gpuplanner.schemas.kinds import count, decimal, meaning, number, text, time
from gpuplanner.schemas.vocabulary import JOB_STATES

RESOURCES = ("gpu", "node")
"""What a pool is counted in."""


class Requests(dy.Schema):
    """One request to a served model."""

    time = time("when the request came")
    service = text("which service it came to")
    prompt_tokens = count("tokens of the prompt")
    generated_tokens = count("tokens of the answer")


class Occupancy(dy.Schema):
    """One pool at one instant: how much of it was held. A series, not jobs."""

    time = time("instant of the reading")
    pool = text("virtual cluster or cluster")
    resource = dy.Enum(RESOURCES, nullable=False, metadata=meaning("what is counted"))
    total = count("quota or size of the pool")
    allocated = count("held by jobs")
    pending = count("asked for by waiting jobs; null where the source does not say", nullable=True)


class Quotas(dy.Schema):
    """GPU quota of one pool on one day; a pool that did not exist that day has no row."""

    day = dy.Date(nullable=False, metadata=meaning("local day"))
    pool = text("virtual cluster")
    gpus = count("GPUs that the pool may hold", low=1)


class Gauges(dy.Schema):
    """One reading of one metric of one container."""

    time = time("instant on the source's own clock")
    subject = text("container; null where the reading is of the whole service", nullable=True)
    metric = text("what was read")
    kind = text("kind of request that the reading counts", nullable=True)
    value = number("the reading, in the unit named beside it")
    unit = text("unit of the value")


class StepTimes(dy.Schema):
    """One training step of one worker."""

    job = text("training job")
    worker = count("number of the worker")
    step = count("position in the job's series")
    gpu_share = number("share of one GPU that the worker holds", "GPU", high=1.0)
    step_time = number("time of the mini-batch, scaled by the source so that the job's longest is 1000", "")


class Distributions(dy.Schema):
    """One point of a cumulative distribution: no time, so no series."""

    series = text("quantity and unit, in the words of the source")
    value = number("value of the quantity", low=None)
    percent = number("share of the readings that are at most that value", "%", high=100.0)


class JobStates(dy.Schema):
    """One job of a listing without times: what it was and how it ended, no GPU-time."""

    job_id = text("identity in the source")
    tenant = text("who pays", nullable=True)
    job_name = text("name that the user gave it", nullable=True)
    partition = text("partition that it was submitted to", nullable=True)
    state = dy.Enum(JOB_STATES, nullable=False, metadata=meaning("state when the list was made"))
    cpus = count("processors held", nullable=True)
    exit_code = text("exit code and signal", nullable=True)


class Charges(dy.Schema):
    """One charge line of a bill, with the column names of FOCUS; own fields begin with ``x_``."""

    BillingPeriodStart = time("first instant of the billing period")
    BillingPeriodEnd = time("first instant after the billing period")
    ChargePeriodStart = time("first instant of what is charged")
    ChargePeriodEnd = time("first instant after what is charged", nullable=True)
    ProviderName = text("who provides it", nullable=True)
    BillingAccountId = text("account that is billed")
    SubAccountId = text("account that used it", nullable=True)
    SubAccountName = text("name of that account", nullable=True)
    ChargeCategory = text("Usage, Purchase, Tax, Credit, Adjustment")
    ChargeClass = text("Correction, where the line mends an earlier bill", nullable=True)
    ChargeDescription = text("what the line is for", nullable=True)
    ServiceCategory = text("FOCUS service category", nullable=True)
    ServiceName = text("name of the service", nullable=True)
    SkuId = text("what was sold", nullable=True)
    RegionId = text("region", nullable=True)
    ResourceId = text("resource charged for", nullable=True)
    x_InstanceType = text("instance type, in the words of the provider", nullable=True)
    PricingCategory = text("Standard, Committed, Dynamic, Other", nullable=True)
    PricingQuantity = decimal("amount priced", "PricingUnit", nullable=True)
    PricingUnit = text("unit of PricingQuantity", nullable=True)
    CommitmentDiscountId = text("commitment that the line belongs to", nullable=True)
    CommitmentDiscountStatus = text("Used or Unused", nullable=True)
    BilledCost = decimal("what is invoiced", "BillingCurrency")
    EffectiveCost = decimal("cost with upfront payments spread over their use", "BillingCurrency")
    ListCost = decimal("at list price", "BillingCurrency", nullable=True)
    BillingCurrency = text("ISO 4217 code; amounts of two currencies are never added")
    Tags = text("tags as a JSON object with sorted keys", nullable=True)


class Processes(dy.Schema):
    """One process seen on a GPU at one time."""

    time = time("when it was seen")
    node = text("node name")
    gpu = count("index of the GPU on its node")
    pid = dy.Int64(nullable=True, metadata=meaning("number of the process on its node"))
    kind = text("C (compute), G (graphics) or both", nullable=True)
    command = text("name of the program", nullable=True)
    memory_gib = number("device memory that it holds", "GiB", nullable=True)


class Coverage(dy.Schema):
    """One node on one UTC day: how much of it telemetry saw."""

    node = text("node name")
    day = dy.Date(nullable=False, metadata=meaning("UTC day"))
    gpus = count("GPUs seen on the node on any day")
    samples = dy.Int64(nullable=False, metadata=meaning("samples of the day"))
    observed_gpu_h = number("time for which samples hold", "GPU h")
    expected_gpu_h = number(
        "those GPUs from the first sample of the node until its last one holds no more", "GPU h"
    )
    covered = number("observed of expected; null where nothing was to be expected", "0-1", nullable=True)


class QueueQuotas(dy.Schema):
    """One resource of one flavor of one queue, or account, of a cluster. A null limit is none."""

    tenant = text("queue or account, which is the tenant of its jobs")
    cohort = text("queues of one cohort lend each other their rest", nullable=True)
    flavor = text("ResourceFlavor: kind of node", nullable=True)
    gpu_model = text("board of the flavor's nodes", nullable=True)
    resource = text("resource, in the words of the source")
    profile = text("MIG profile of the resource; null: whole GPUs", nullable=True)
    nominal = number("units of the resource that are its own; null: it has a share alone", nullable=True)
    borrow = number("units that it may borrow at most", nullable=True)
    lend = number("units that it may lend at most", nullable=True)
    namespaces = text("namespaces that use it, joined by ','", nullable=True)
    weight = number("share where teams take turns, and of what nobody has a quota for", nullable=True)


class JobNames(dy.Schema):
    """Another name of a job, by which telemetry may know it: a pod, the number of an array task."""

    name = text("name in telemetry")
    job_id = text("identity in the list of jobs")


class OutOfService(dy.Schema):
    """GPUs of a node that were there and kept from jobs: while they were cut, or closed, or reserved."""

    node = text("node name")
    start_time = time("since when")
    end_time = time("until when; null if they still are", nullable=True)
    gpus = number("GPUs; null: all of the node but for what jobs still hold there", "GPU", nullable=True)
    bucket = dy.Enum(("reserved", "reconfiguring", "down"), nullable=False, metadata=meaning("why"))
    tenant = text("for whom they are reserved; null: nobody is named", nullable=True)


READING_TABLES: dict[str, type[dy.Schema]] = {
    "requests": Requests,
    "occupancy": Occupancy,
    "quotas": Quotas,
    "gauges": Gauges,
    "step_times": StepTimes,
    "distributions": Distributions,
    "job_states": JobStates,
    "charges": Charges,
    "processes": Processes,
    "coverage": Coverage,
    "job_names": JobNames,
    "queue_quotas": QueueQuotas,
    "out_of_service": OutOfService,
}
