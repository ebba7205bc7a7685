"""The question and the answer: a problem, its limits, and a plan, in memory and in files."""
