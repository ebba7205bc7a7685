"""Policies at the same service: each tuned until its jobs wait no longer than they may, then judged by its cost."""
