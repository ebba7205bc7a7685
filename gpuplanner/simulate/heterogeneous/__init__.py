"""The loops over fleets of several types of GPU: one decision for each job, and in rounds."""
