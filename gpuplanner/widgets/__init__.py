"""Controls for notebooks: they put a question, have it answered in the background, and show the answer."""

from gpuplanner.widgets.ahead import AheadPanel, AheadQuestion
from gpuplanner.widgets.boards import ALL_BOARDS, BoardsPanel
from gpuplanner.widgets.costs import CostPanel
from gpuplanner.widgets.explore import ExplorePanel, explore_inbox
from gpuplanner.widgets.limits import LimitsPanel, price_html
from gpuplanner.widgets.rules import SharingPanel
from gpuplanner.widgets.whatif import WhatIf, whatif
from gpuplanner.widgets.written import files_button

__all__ = [
    "ALL_BOARDS",
    "AheadPanel",
    "AheadQuestion",
    "BoardsPanel",
    "CostPanel",
    "ExplorePanel",
    "LimitsPanel",
    "SharingPanel",
    "WhatIf",
    "explore_inbox",
    "files_button",
    "price_html",
    "whatif",
]
