"""Commands of the lab; importing this room registers them."""

from gpuplanner.lab.commands import allocate, claims

__all__ = ["allocate", "claims"]
