"""Job lists on whole GPUs under research orders."""
