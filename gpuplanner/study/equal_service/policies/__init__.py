"""Policies and how each is tuned: fixed fleets, calendars, reacting ones, pools of nodes."""
