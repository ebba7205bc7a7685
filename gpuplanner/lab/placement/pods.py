"""Who asks, and what there is: pods with CPU, memory and GPU shares, and nodes to put them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.errors import ScenarioError, examples, message

Integers: TypeAlias = NDArray[np.int64]

MILLI = 1000
"""Shares of one GPU are counted in thousandths."""

MAX_GPUS_PER_NODE = 62
"""The GPUs that a pod got are the bits of one number."""

LARGEST = 2**40
"""Largest CPU or memory of one pod or node: what keeps every sum exact in 64 bits."""


@dataclass(frozen=True, eq=False)
class Pods:
    """Requests, in order of arrival.

    Parameters
    ----------
    names : sequence of str, length n_pods
        For messages and tables.
    cpu_milli : sequence of int, shape (n_pods,)
        CPU [thousandths of a core].
    memory_mib : sequence of int, shape (n_pods,)
        Main memory [MiB].
    gpus : sequence of int, shape (n_pods,)
        GPUs, all of one node; 0 for a pod without.
    gpu_milli : sequence of int, shape (n_pods,)
        Share of each of these GPUs [thousandths]: 0 without a GPU, 1000 for whole GPUs. Only a single GPU can
        be shared.
    models : sequence of str, length n_pods, optional
        GPU models that will do, joined by ``|``; empty if any will.

    Raises
    ------
    ScenarioError
        If lengths differ or a value makes no sense; the message names the pods.

    Examples
    --------
    >>> pods = Pods(["a", "b"], [4000, 8000], [1024, 2048], [1, 2], [500, 1000], ["", "T4|A10"])
    >>> pods.demand.tolist()
    [500, 2000]
    """

    names: tuple[str, ...]
    cpu_milli: Integers
    memory_mib: Integers
    gpus: Integers
    gpu_milli: Integers
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take read-only copies, and check them against each other."""
        names, models = tuple(self.names), tuple(self.models) or ("",) * len(self.names)
        object.__setattr__(self, "names", names)
        for field in ("cpu_milli", "memory_mib", "gpus", "gpu_milli"):
            object.__setattr__(self, field, _whole("pods", field, getattr(self, field), names))
        if len(models) != len(names):
            _refuse("pods: models", f"one for each of {len(names)} pods", str(len(models)))
        object.__setattr__(self, "models", tuple(map(_canonical, models)))
        _check("pods: gpu_milli", "at most 1000", self.gpu_milli > MILLI, names)
        odd = (self.gpus == 0) != (self.gpu_milli == 0)
        _check("pods: gpus and gpu_milli", "both 0 or both above 0", odd, names)
        shared = (self.gpus > 1) & (self.gpu_milli < MILLI)
        _check("pods: gpu_milli", "1000 where several GPUs are wanted", shared, names)
        _check("pods: gpus", f"at most {MAX_GPUS_PER_NODE}", self.gpus > MAX_GPUS_PER_NODE, names)

    @property
    def demand(self) -> Integers:
        """GPU thousandths that each pod asks for, shape (n_pods,)."""
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes, empty at first.

    Parameters
    ----------
    names : sequence of str, length n_nodes
        Each once.
    cpu_milli, memory_mib : sequence of int, shape (n_nodes,)
        CPU [thousandths of a core] and main memory [MiB].
    gpus : sequence of int, shape (n_nodes,)
        GPUs, all of one model.
    models : sequence of str, length n_nodes, optional
        Their model; empty if unknown, which no pod that names one accepts.

    Raises
    ------
    ScenarioError
        If lengths differ or a value makes no sense; the message names the nodes.

    Examples
    --------
    >>> Nodes(["n1"], [96000], [393216], [8], ["T4"]).capacity
    8000
    """

    names: tuple[str, ...]
    cpu_milli: Integers
    memory_mib: Integers
    gpus: Integers
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take read-only copies, and check them against each other."""
        names, models = tuple(self.names), tuple(self.models) or ("",) * len(self.names)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "models", models)
        for field in ("cpu_milli", "memory_mib", "gpus"):
            object.__setattr__(self, field, _whole("nodes", field, getattr(self, field), names))
        if len(models) != len(names):
            _refuse("nodes: models", f"one for each of {len(names)} nodes", str(len(models)))
        if len(set(names)) < len(names):
            _refuse("nodes: names", "each once", f"{len(names) - len(set(names))} twice")
        _check("nodes: gpus", f"at most {MAX_GPUS_PER_NODE}", self.gpus > MAX_GPUS_PER_NODE, names)

    @property
    def capacity(self) -> int:
        """GPU thousandths of all nodes."""
        return int(self.gpus.sum()) * MILLI


def accepts(wanted: str, model: str) -> bool:
    """Whether a pod that wants these models takes a GPU of that one.

    Examples
    --------
    >>> accepts("", "T4"), accepts("A10|T4", "T4"), accepts("A10", "T4")
    (True, True, False)
    """
    return not wanted or model in wanted.split("|")


def _canonical(wanted: str) -> str:
    return "|".join(sorted({model.strip() for model in wanted.split("|")} - {""}))


def _whole(what: str, field: str, values: ArrayLike, names: Sequence[str]) -> Integers:
    """A read-only copy as whole numbers."""
    given = np.array(values)
    if given.shape != (len(names),) or not given.size or given.dtype.kind not in "iu":
        got = f"{given.dtype} of shape {given.shape}"
        _refuse(f"{what}: {field}", f"a whole number for each of {len(names)} (at least one)", got)
    _check(f"{what}: {field}", f"from 0 to {LARGEST}", (given < 0) | (given > LARGEST), names)
    whole = given.astype(np.int64)
    whole.setflags(write=False)
    return whole


def _check(what: str, expected: str, wrong: NDArray[np.bool_], names: Sequence[str]) -> None:
    if wrong.any():
        found = [names[index] for index in np.flatnonzero(wrong).tolist()]
        _refuse(what, expected, f"{len(found)} others: {examples(found)}")


def _refuse(what: str, expected: str, got: str) -> NoReturn:
    raise ScenarioError(message(what, expected, got, "Mend the list."))
