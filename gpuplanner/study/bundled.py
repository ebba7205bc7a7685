"""Where the shipped sample, notebooks and results of claims stand: in an installed package, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from gpuplanner.files.text import sha256

PACKAGE = Path(__file__).resolve().parent.parent


def sample_folder() -> Path:
    """Folder of the shipped sample.

    Examples
    --------
    >>> (sample_folder() / "jobs.parquet").exists()
    True
    """
    return _first(PACKAGE / "_bundled" / "sample", PACKAGE.parent / "data" / "sample")


def data_folder(data: str) -> Path:
    """Folder that a scenario or a command names; ``"sample"`` is the shipped one.

    Examples
    --------
    >>> data_folder("sample") == sample_folder(), str(data_folder("cluster"))
    (True, 'cluster')
    """
    return sample_folder() if data == "sample" else Path(data)


def notebook_folder() -> Path:
    """Folder of the shipped notebooks."""
    return _first(PACKAGE / "_bundled" / "notebooks", PACKAGE.parent / "notebooks")


def claims_folder() -> Path:
    """Folder of the stored results of ``benchmarks/claims``."""
    return _first(PACKAGE / "_bundled" / "claims", PACKAGE.parent / "benchmarks" / "claims" / "results")


def _first(installed: Path, checkout: Path) -> Path:
    return installed if installed.is_dir() else checkout


def input_hashes(data: str, *more: str | None) -> dict[str, str]:
    """Hash of every table of a dataset and of other files that are named, by the name of the file."""
    paths = [*sorted(data_folder(data).glob("*.parquet")), *(Path(one) for one in more if one is not None)]
    return {path.name: sha256(path) for path in paths}
