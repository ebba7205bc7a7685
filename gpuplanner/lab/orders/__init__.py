"""Orders and queues that papers propose and schedulers do not offer: SRTF, LAS, conservative backfill."""

from gpuplanner.lab.orders.rules import ORDERS, QUEUES, ResearchRules

__all__ = ["ORDERS", "QUEUES", "ResearchRules"]
