"""Jobs and telemetry drawn by seed: what the shipped sample is made of."""
