"""Slurm: accounting, node lists, events."""
