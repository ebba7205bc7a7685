"""Inference services: instance sizes, batches, processes and layouts for the fewest GPUs that answer in time."""

from gpuplanner.services.demands import read_service_demands
from gpuplanner.services.plan import ServicePlan
from gpuplanner.services.profiles import read_service_profiles
from gpuplanner.services.search import plan_services
from gpuplanner.services.verify import verify_services

__all__ = [
    "ServicePlan",
    "plan_services",
    "read_service_demands",
    "read_service_profiles",
    "verify_services",
]
