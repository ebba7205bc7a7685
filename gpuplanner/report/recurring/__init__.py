"""Pages of what comes back: looks at a running fleet."""
