"""Checks plans again from scratch; shares no code with the methods."""
