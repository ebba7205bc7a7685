"""Public traces."""
