"""Plans that go on slot by slot, when a new one is worth its price, and the order of drains at a boundary."""

from gpuplanner.planner.rolling.online import Online, roll
from gpuplanner.planner.rolling.transition import transition
from gpuplanner.planner.rolling.worthwhile import weigh

__all__ = ["Online", "roll", "transition", "weigh"]
