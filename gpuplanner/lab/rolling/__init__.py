"""Plans that go on slot by slot, and the order of drains at a boundary: what no command asks for as yet."""

from gpuplanner.lab.rolling.lazy import lazy
from gpuplanner.lab.rolling.online import Online, roll
from gpuplanner.lab.rolling.transition import transition

__all__ = ["Online", "lazy", "roll", "transition"]
