"""Commands for what comes back: a gate for pipelines, months one after the other, looks at a running cluster."""
