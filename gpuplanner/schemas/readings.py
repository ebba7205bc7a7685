"""Tables of what the inbox reads that is not jobs: requests, occupancy, quotas, series, bills."""

from __future__ import annotations

import dataframely as dy

from gpuplanner.schemas.kinds import declared


@declared
class Requests(dy.Schema):
    """One request to a served model."""


@declared
class Occupancy(dy.Schema):
    """One pool at one instant: how much of it was held. A series, not jobs."""


@declared
class Quotas(dy.Schema):
    """GPU quota of one pool on one day; a pool that did not exist that day has no row."""


@declared
class Gauges(dy.Schema):
    """One reading of one metric of one container."""


@declared
class StepTimes(dy.Schema):
    """One training step of one worker."""


@declared
class Distributions(dy.Schema):
    """One point of a cumulative distribution: no time, so no series."""


@declared
class JobStates(dy.Schema):
    """One job of a listing without times: what it was and how it ended, no GPU-time."""


@declared
class Charges(dy.Schema):
    """One charge line of a bill, with the column names of FOCUS; own fields begin with ``x_``."""


@declared
class Processes(dy.Schema):
    """One process seen on a GPU at one time."""


@declared
class Coverage(dy.Schema):
    """One node on one UTC day: how much of it telemetry saw."""


@declared
class QueueQuotas(dy.Schema):
    """One resource of one flavor of one queue, or account, of a cluster. A null limit is none."""


@declared
class JobNames(dy.Schema):
    """Another name of a job, by which telemetry may know it: a pod, the number of an array task."""


@declared
class OutOfService(dy.Schema):
    """GPUs of a node that were there and kept from jobs: while they were cut, or closed, or reserved."""


READING_TABLES: tuple[type[dy.Schema], ...] = (
    *(Requests, Occupancy, Quotas, Gauges, StepTimes, Distributions, JobStates),
    *(Charges, Processes, Coverage, JobNames, QueueQuotas, OutOfService),
)
