"""Kubernetes: pods, nodes, queues, state metrics."""
