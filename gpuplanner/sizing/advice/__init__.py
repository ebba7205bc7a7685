"""What to ask for next time, as lines to paste."""
