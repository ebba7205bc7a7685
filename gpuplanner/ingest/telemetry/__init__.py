"""Telemetry: Prometheus, DCGM, nvidia-smi, and samples."""
