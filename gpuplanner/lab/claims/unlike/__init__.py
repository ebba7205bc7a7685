"""Schedulers that others published for unlike GPUs and for jobs that grow and shrink, on the engine's loops."""

from gpuplanner.lab.claims.unlike.allocation import by_power_mean
from gpuplanner.lab.claims.unlike.elastic import ElasticRun, schedule_elastic
from gpuplanner.lab.claims.unlike.elastic_jobs import ElasticJobs, ElasticModel, rigid_jobs
from gpuplanner.lab.claims.unlike.goodput import Goodput
from gpuplanner.lab.claims.unlike.reassign import Assignment, by_assignment, reassign

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
