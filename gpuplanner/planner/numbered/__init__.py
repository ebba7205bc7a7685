"""From counts to numbered GPUs: who is cut when, in what order, and for how long."""
