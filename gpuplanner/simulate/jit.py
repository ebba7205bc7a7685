"""How the loops of this room are compiled.

They allocate nothing, so numba's memory management is off: counting references to the tables would take two
thirds of the time.
"""

from __future__ import annotations

from gpuplanner.jit import Function, part
from gpuplanner.jit import compiled_entry as kept


def event_loop_entry(function: Function) -> Function:
    """Compile a function that Python calls: at its first call, once for all."""
    return kept(function, no_cfunc_wrapper=True, _nrt=False)


def compiled(function: Function) -> Function:
    """Compile a function that only other compiled functions call, into the function that calls it.

    Passing the whole world costs more than most calls do, hence the inlining.
    """
    return part(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True, _nrt=False)


def called(function: Function) -> Function:
    """Compile a function that stays one of its own: large, called from several places, and not often."""
    return part(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)
