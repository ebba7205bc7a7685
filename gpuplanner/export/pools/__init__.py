"""Nodes that come and go, and who may have how much of them: what controllers and queue managers are told."""
