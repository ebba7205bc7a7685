"""What it costs to come from one state of the fleet to another."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.fluid import Fluid


def change_prices(fluid: Fluid) -> Floats:
    """Cost of one more GPU with each layout, shape (n_layouts,); 0 for a GPU that is not cut."""
    return np.where(fluid.cut, fluid.change_cost, 0.0)


def change_costs(fluid: Fluid, before: Counts, after: Counts) -> Floats:
    """Cost of changing from each state to each other.

    A state is a vector of counts. Only growth is paid, each layout by itself, so that the cost is a distance
    in one direction: never more over a third state than straight (the triangle inequality holds), and
    nothing on the way down.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    before : ndarray of int, shape (n, n_layouts)
        States left.
    after : ndarray of int, shape (m, n_layouts)
        States entered.

    Returns
    -------
    ndarray of float, shape (n, m)
    """
    costs = np.zeros((len(before), len(after)))
    for layout, price in enumerate(change_prices(fluid).tolist()):
        if price:
            costs += price * (after[None, :, layout] - before[:, None, layout]).clip(0)
    return costs
