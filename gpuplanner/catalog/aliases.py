"""Every name that a board goes by: which boards a word may mean, and what a board is called elsewhere."""

from __future__ import annotations

import functools
import re

from gpuplanner.catalog.loader import facts
from gpuplanner.errors import GeometryError, message

_VENDOR = re.compile(r"^(nvidia|amd|tesla|geforce|instinct)+")


def boards_called(word: str) -> tuple[str, ...]:
    """Boards that a word may mean.

    Case, blanks, ``-`` and ``_`` do not matter. Words that name a board in full come first: only if there is none
    is the maker's name left out (``nvidia_a100`` and ``A100`` are then the same), then the order of the parts.
    Names are those of ``board_names.csv`` (what NVML and nvidia-smi print, the label ``nvidia.com/gpu.product`` of a
    Kubernetes node, types of a GPU in Slurm, names of the same board in other drivers, in clouds and in trade), names
    of the catalogue, and types as slurmd derives them.

    Parameters
    ----------
    word : str
        A name without a MIG profile: ``"NVIDIA-H100-80GB-HBM3"``, ``"a100"``, ``"nvidia_h100_pcie"``.

    Returns
    -------
    tuple of str
        Boards in the order of ``board_names.csv``, the more common of a family first; empty if no board is called
        so. Several if the word alone does not decide: ``a100`` may have 40 or 80 GB.

    Examples
    --------
    >>> boards_called("NVIDIA-H100-80GB-HBM3"), boards_called("a100_80")
    (('H100-80GB-SXM5',), ('A100-80GB',))
    >>> boards_called("H100-SXM5-80GB")
    ('H100-80GB-SXM5',)
    >>> boards_called("a100")
    ('A100-40GB', 'A100-80GB')
    >>> boards_called("TPU v5")
    ()
    """
    table = _index()
    fold = _fold(word)
    return table.get(fold) or table.get(_VENDOR.sub("", fold)) or table.get(_parts(word)) or ()


def names_of(board: str, kind: str) -> tuple[str, ...]:
    """Names of one kind that a board goes by, the usual one first.

    Examples
    --------
    >>> names_of("A100-40GB", "nvml")[:2]
    ('NVIDIA A100-SXM4-40GB', 'NVIDIA A100-PCIE-40GB')
    """
    return tuple(facts("board_names").filter(board=board, kind=kind)["name"])


@functools.cache
def all_boards() -> tuple[str, ...]:
    """Boards with a name in the catalogue, with and without MIG.

    Examples
    --------
    >>> "T4" in all_boards()
    True
    """
    return tuple(facts("board_names")["board"].unique(maintain_order=True))


def slurm_type(nvml_name: str) -> str:
    """Type that slurmd gives to a whole GPU with ``AutoDetect=nvml``.

    Lower case, blanks become ``_``, and only what stands before the first ``-`` is kept [1]_. A MIG device has ``_``
    and its profile behind it. A type in slurm.conf must be part of this one, or the node is drained.

    References
    ----------
    .. [1] SchedMD/slurm, src/plugins/gpu/nvml/gpu_nvml.c; seen with slurmd 22.05.8.

    Examples
    --------
    >>> slurm_type("NVIDIA A100-SXM4-80GB"), slurm_type("NVIDIA H100 80GB HBM3")
    ('nvidia_a100', 'nvidia_h100_80gb_hbm3')
    """
    return nvml_name.partition("-")[0].strip().lower().replace(" ", "_")


def slurm_type_of(board: str) -> str:
    """Type that slurmd finds for the usual variant of a board.

    Raises
    ------
    GeometryError
        If no NVML name of the board is known.

    Examples
    --------
    >>> slurm_type_of("H100-80GB-PCIe"), slurm_type_of("H200-141GB")
    ('nvidia_h100_pcie', 'nvidia_h200')
    """
    found = names_of(board, "nvml")
    if not found:
        expected = "a board whose NVML name is in board_names.csv"
        todo = "Name the type that slurmd finds ('slurmd -G') with --gres-type."
        raise GeometryError(message(f"Slurm type of {board}", expected, "none", todo))
    return slurm_type(found[0])


@functools.cache
def _index() -> dict[str, tuple[str, ...]]:
    """Boards by folded name, each list in the order of the table."""
    found: dict[str, dict[str, None]] = {}

    def add(name: str, board: str) -> None:
        fold = _fold(name)
        for key in {fold, _VENDOR.sub("", fold), _parts(name)} - {""}:
            found.setdefault(key, {})[board] = None

    rows = facts("board_names")
    for board in rows["board"].unique(maintain_order=True):
        add(board, board)
    for variant, board in facts("gpu_specs").select("gpu_model", "mig_model").iter_rows():
        add(variant, board or variant)
    for board, kind, name in rows.select("board", "kind", "name").iter_rows():
        if kind == "nvml":
            add(slurm_type(name), board)
        add(name, board)
    order = {board: place for place, board in enumerate(rows["board"].unique(maintain_order=True))}
    return {key: tuple(sorted(boards, key=order.__getitem__)) for key, boards in found.items()}


def _parts(name: str) -> str:
    """Parts of a name but the maker's in order of the alphabet, apart; of one part alone nothing."""
    parts = sorted(re.findall(r"[a-z0-9]+", _VENDOR.sub("", name.casefold())))
    return " ".join(parts) if len(parts) > 1 else ""


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
