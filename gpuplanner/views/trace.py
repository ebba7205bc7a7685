"""A trace for notebooks and scripts: its parts show themselves."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.report import inbox
from gpuplanner.study.past.explore import EVERYBODY, Inbox, open_inbox
from gpuplanner.views.view import View
from gpuplanner.widgets.explore import ExplorePanel, explore_inbox


def explore(
    data: str | Dataset = "sample", *, board: str | None = None, tz: str = "UTC", smallest_group: int = 0
) -> SeenTrace:
    """Look into a trace: quality, hours, demand, phases, claims.

    Parameters
    ----------
    data : str or Dataset
        Folder written by ``ingest``, ``"sample"``, the name of a public trace, or what :func:`gpuplanner.read` gave.
    board : str, optional
        Board that requests are read for; default: the data's own.
    tz : str
        Zone of days and months.
    smallest_group : int
        Fewest people of a tenant that is shown by itself.

    Returns
    -------
    SeenTrace
        ``quality()``, ``ledger()``, ``demand()``, ``phases()``, ``claim()``, ``provenance()``: a view each.

    Raises
    ------
    TraceFormatError
        If it is no dataset.

    Examples
    --------
    >>> explore("sample").ledger().frame().columns[:2]
    ['bucket', 'gpu_hours']
    """
    box = open_inbox(data, board=board, tz=tz, smallest_group=smallest_group)
    return SeenTrace(box, data if isinstance(data, str) else "the trace")


@dataclass(frozen=True, eq=False)
class SeenTrace:
    """A trace whose parts show themselves.

    - ``box``, ``name``: What was opened, and from where.
    """

    box: Inbox
    name: str

    def _repr_html_(self) -> str:
        return self.quality()._repr_html_()

    def quality(self) -> View:
        """What is wrong with the data, and which time was seen."""
        return View(inbox.quality(self.box.quality), self.box.quality.findings)

    def ledger(self, tenant: str = EVERYBODY) -> View:
        """Where the GPU-time went."""
        return View(
            inbox.ledger(self.box, tenant),
            self.box.buckets() if tenant == EVERYBODY else self.box.months(tenant),
        )

    def demand(self, tenant: str = EVERYBODY) -> View:
        """What was wanted, by profile and by tenant."""
        return View(inbox.demand(self.box, tenant), self.box.of(self.box.demand, tenant))

    def phases(self, job: str = "") -> View:
        """Phases, dips, signature and slice of one job; by default of the one with most telemetry."""
        known = self.box.jobs_of()
        table = (
            self.box.job(job or known[0]).phases if known and self.box.fleet.can_be_cut else pl.DataFrame()
        )
        return View(inbox.phases(self.box, job), table)

    def claim(self) -> View:
        """Whether late phases need fewer GPUs."""
        return View(inbox.claim(self.box), pl.DataFrame() if self.box.claim is None else self.box.claim)

    def provenance(self) -> View:
        """Where the numbers come from."""
        return View(inbox.provenance(self.box), self.box.quality.findings)

    def panel(self) -> ExplorePanel:
        """Controls to look around: trace, tenant, job and view."""
        return explore_inbox(self.box, inbox.VIEWS, data=self.name)
