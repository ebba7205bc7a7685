"""From what was seen to one decision: keep, cut, give back, or buy."""
