"""The sections of the monthly report. They choose and arrange; every number comes from the study."""

from gpuplanner.report.tearsheet.headline import summary
from gpuplanner.report.tearsheet.money import costs, method
from gpuplanner.report.tearsheet.past import demand, ledger, quality, rightsizing
from gpuplanner.report.tearsheet.plan import comparison, layouts

__all__ = [
    "comparison",
    "costs",
    "demand",
    "layouts",
    "ledger",
    "method",
    "quality",
    "rightsizing",
    "summary",
]
