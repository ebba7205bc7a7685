"""Controls for notebooks: they put a question, have it answered in the background, and show the answer."""

from gpuplanner.widgets.explore import ExplorePanel, explore_inbox
from gpuplanner.widgets.limits import LimitsPanel, price_html
from gpuplanner.widgets.rules import SharingPanel
from gpuplanner.widgets.sweep import SweepPanel, sweep_html
from gpuplanner.widgets.whatif import WhatIf, whatif
from gpuplanner.widgets.written import files_button, workbook_button

__all__ = [
    "ExplorePanel",
    "LimitsPanel",
    "SharingPanel",
    "SweepPanel",
    "WhatIf",
    "explore_inbox",
    "files_button",
    "price_html",
    "sweep_html",
    "whatif",
    "workbook_button",
]
