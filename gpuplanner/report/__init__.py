"""Reports: pages that show a study and compute nothing."""
