"""The loops over MIG instances: calendars of layouts, and GPUs that are cut on demand."""
