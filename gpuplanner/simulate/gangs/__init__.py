"""The loops over gangs: jobs that hold whole GPUs, all at once or not at all."""
