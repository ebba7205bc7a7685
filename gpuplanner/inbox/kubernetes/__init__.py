"""Kubernetes: pods, jobs, nodes and quotas of a dump of objects, with Kueue and DRA."""
