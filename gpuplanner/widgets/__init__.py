"""Controls for notebooks: they put a question, have it answered in the background, and show the answer."""

from gpuplanner.widgets.limits import LimitsPanel, price_html, what_limits_cost
from gpuplanner.widgets.whatif import WhatIf, whatif

__all__ = ["LimitsPanel", "WhatIf", "price_html", "what_limits_cost", "whatif"]
