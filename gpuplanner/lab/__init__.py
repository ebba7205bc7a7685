"""Job lists on whole GPUs under research orders: what ``gpuplanner simulate --jobs`` runs."""
