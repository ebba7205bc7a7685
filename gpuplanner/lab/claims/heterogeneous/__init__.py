"""Schedulers that others published for heterogeneous GPUs and for jobs that grow and shrink, on the engine's loops."""

from gpuplanner.lab.claims.heterogeneous.allocation import by_power_mean
from gpuplanner.lab.claims.heterogeneous.elastic import ElasticRun, schedule_elastic
from gpuplanner.lab.claims.heterogeneous.elastic_jobs import ElasticJobs, ElasticModel, rigid_jobs
from gpuplanner.lab.claims.heterogeneous.goodput import Goodput
from gpuplanner.lab.claims.heterogeneous.reassign import Assignment, by_assignment, reassign

__all__ = [
    "Assignment",
    "ElasticJobs",
    "ElasticModel",
    "ElasticRun",
    "Goodput",
    "by_assignment",
    "by_power_mean",
    "reassign",
    "rigid_jobs",
    "schedule_elastic",
]
