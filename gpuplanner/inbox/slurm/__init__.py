"""Slurm: accounting as text, JSON or integer tables, node dumps, and lists without times."""
