"""What it costs to come from one state of the fleet to another."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts, Floats


def change_costs(fluid: Fluid, before: Counts, after: Counts) -> Floats:
    r"""Cost of changing from each state to each other.

    Let :math:`h_l` GPUs have layout :math:`l` before, on or not, and :math:`g_l` after. As many GPUs as can keep
    their layout. So :math:`\sum_l (g_l - h_l)^+` take up a layout with instances; where fewer have instances
    after than before, the difference is made whole. MIG mode changes on
    :math:`\left| \sum_l (g_l - h_l) \right|` of them. This is a distance: never more over a third state than
    straight, and the same both ways.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    before : ndarray of int, shape (n, n_columns)
        States left.
    after : ndarray of int, shape (m, n_columns)
        States entered.

    Returns
    -------
    ndarray of float, shape (n, m)
    """
    had, have = fluid.held(before), fluid.held(after)
    grown = np.zeros((len(had), len(have)))
    for one, other in zip(had.T, have.T, strict=True):
        grown += (other[None] - one[:, None]).clip(0)
    mode = (have.sum(axis=1)[None] - had.sum(axis=1)[:, None]).astype(np.float64)
    costs: Floats = fluid.change_cost * (grown + (-mode).clip(0)) + fluid.mode_cost * np.abs(mode)
    return costs
