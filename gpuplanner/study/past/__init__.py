"""What a trace tells of the past: one fleet, one history, where the time went."""
