"""Which GPUs take which layouts, slot after slot, in pools that park what they do not need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.numbered.placer import Placer, Places
from gpuplanner.planner.numbered.transport import transport


class ParkedPlacer(Placer):
    """Chooses GPUs for counts of those on and of those parked, so that nothing moves that need not.

    A position of a layout plus the number of layouts means: parked with that layout. The layout of a GPU that is not
    cut is one as well, so that every GPU has one.
    """

    def next(self, before: Places, wanted: Counts, *, free: bool = False) -> Places:
        """State of every GPU, as close to the one before as the wanted counts allow.

        Layouts are given up by parked GPUs first; they go where they harm least. GPUs on stay on, parked ones with
        the layout come next, then those that have taken it up.
        """
        n = len(self.cut) + 1
        on, held_before = before < n, before % n
        assert self.whole is not None
        target = wanted[:n] + wanted[n:]
        target[self.whole] += len(before) - target.sum()
        held = self._held(held_before, on, target, int(wanted[self.whole]))
        now = (held + n).astype(before.dtype)
        node = self.node
        for layout in range(n):
            here = np.flatnonzero(held == layout)
            beside = self.per_node(held != self.whole)[node[here]] if layout == self.whole else -here
            was_on = on[here] & (held_before[here] == layout)
            fresh = held_before[here] != layout
            order = here[np.lexsort((here, beside, ~self.kept[here], fresh, ~was_on))]
            if layout == self.whole:
                order = self._powered_first(order, held != self.whole)
            now[order[: wanted[layout]]] = layout
        if not free:
            self.cuts_today += held != held_before
        return now

    def _held(self, before: Places, on: NDArray[np.bool_], target: Counts, whole_on: int) -> Places:
        """Layout of every GPU; so many of those that are not cut are to be on."""
        n = len(target)
        gpus = np.bincount(before, minlength=n)
        held = before.copy()
        surplus = (gpus - target).tolist()
        spare = np.concatenate(
            [self._spare(before, on, layout, more, whole_on) for layout, more in enumerate(surplus)]
        )
        growing = [layout for layout in range(n) if target[layout] > gpus[layout]]
        if not growing:
            return held
        lacking = [int(target[layout] - gpus[layout]) for layout in growing]
        origins = np.unique(before[spare]).tolist()
        supply = [int((before[spare] == origin).sum()) for origin in origins]
        cost = [[self.harm(origin, layout) for layout in growing] for origin in origins]
        for origin, row in zip(origins, transport(supply, lacking, cost), strict=True):
            mine = spare[before[spare] == origin]
            for layout, number in zip(growing, row.tolist(), strict=True):
                held[mine[:number]] = layout
                mine = mine[number:]
        return held

    def _spare(
        self, before: Places, on: NDArray[np.bool_], layout: int, number: int, whole_on: int
    ) -> NDArray[np.intp]:
        """GPUs that give a layout up: parked ones first, then least worn ones, on nodes with few GPUs in use."""
        here = np.flatnonzero((before == layout) & ~self.kept)
        in_use = self.per_node(on)[self.node[here]]
        order = np.lexsort((-here, in_use, self.worn(here), on[here]))
        here = here[order]
        if layout == self.whole and self.most_per_rack is not None:
            # All that is cut stays so then, and of those uncut and on, as many as are to be.
            used = np.flatnonzero((before == layout) & on)
            stay = used[np.argsort(~self.kept[used], kind="stable")[:whole_on]]
            powered = before != layout
            powered[stay] = True
            here = self._powered_first(here[~np.isin(here, stay)], powered)
        return here[: max(0, number)]

    def _powered_first(self, order: NDArray[np.intp], powered: NDArray[np.bool_]) -> NDArray[np.intp]:
        """An order with GPUs first that have power in their racks, beside those that have it already."""
        return order[np.argsort(~self.with_power(order, powered), kind="stable")]
