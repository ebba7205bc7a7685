"""The panel of boards: of a fleet of several, choose one, or all, and see what is decided there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TypeVar

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario
from gpuplanner.widgets.background import BackgroundPanel

ALL_BOARDS = "all boards"

Found = TypeVar("Found")


class BoardsPanel(BackgroundPanel[str, Found]):
    """A drop-down of the boards of a fleet, with what was found on the one that is chosen.

    Parameters
    ----------
    pools : mapping of str to Scenario
        The scenario of each board, most GPUs first; the first is chosen.
    compute : callable
        From a name, or that of all boards, to what is found there; runs in the background.
    show : callable
        From what is found to markup.

    Attributes
    ----------
    board : ipywidgets.Dropdown
        The boards, and all of them where there are several.
    scenario : Scenario
        That of the chosen board; of the first where all are.

    Examples
    --------
    >>> panel = BoardsPanel({"H100": Scenario(), "T4": Scenario(board="T4")}, str, str)
    >>> panel.board.value = "T4"
    >>> panel.question, panel.scenario.board
    ('T4', 'T4')
    """

    def __init__(
        self,
        pools: Mapping[str, Scenario],
        compute: Callable[[str], Found],
        show: Callable[[Found], str],
    ) -> None:
        super().__init__(compute, show, working="Looking at this board ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.pools = dict(pools)
        several = len(self.pools) > 1
        self.board = widgets.Dropdown(
            options=[*self.pools, *([ALL_BOARDS] if several else [])], description="Board",
            disabled=not several, layout={"width": "100%", "max_width": "40em"},
        )  # fmt: skip
        self.button = widgets.Button(description="Show", tooltip="Show what is decided on this board")
        self.button.on_click(lambda _: self.ask())
        self.board.observe(lambda _: self.ask_soon(), names="value")
        said = f"{len(self.pools)} boards, each with jobs of its own" if several else "One board"
        title = widgets.HTML(f"<b>{escape(said)}</b>")
        self.panel = widgets.VBox([title, self.board, self.button, self.status, self.answer])

    @property
    def question(self) -> str:
        """The chosen board, or the word for all."""
        chosen: str = self.board.value
        return chosen

    @property
    def scenario(self) -> Scenario:
        """The scenario of the chosen board; of the first where all are chosen."""
        return self.pools.get(self.question, next(iter(self.pools.values())))
