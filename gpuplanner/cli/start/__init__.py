"""``gpuplanner start``: from the files that a cluster wrote to a decision."""

from gpuplanner.cli.start.command import start

__all__ = ["start"]
