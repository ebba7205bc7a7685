"""Public traces, each in its own columns, and the made-up fleet of the shipped sample."""
