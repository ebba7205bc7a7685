"""What is kept on disk between runs, by its content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import polars as pl

from gpuplanner.demand import RunOff
from gpuplanner.errors import OutputError
from gpuplanner.files import sha256_of_all, to_json, write_atomically
from gpuplanner.forecast import ForecastResult, forecast_demand
from gpuplanner.plugins import plugged_in
from gpuplanner.scenario import Scenario
from gpuplanner.study.bundled import PACKAGE

FRAMES = ("forecast", "scores", "choice")


def cache_folder() -> Path:
    """Where studies and forecasts are kept: ``GPUPLANNER_CACHE``, else ``gpuplanner`` in the user's cache folder."""
    own = os.environ.get("GPUPLANNER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "gpuplanner"


def content_key(scenario: Scenario, inputs: Mapping[str, str]) -> str:
    """Name under which a result is kept: its scenario, its input files and the code that made it."""
    digest = hashlib.sha256(scenario.to_yaml().encode())
    digest.update(to_json(dict(inputs)).encode())
    digest.update(code_hash().encode())
    return digest.hexdigest()[:32]


@functools.cache
def code_hash() -> str:
    """Hash of the code and the facts that make results."""
    files = sorted(PACKAGE.rglob("*.py")) + sorted((PACKAGE / "catalog" / "facts").glob("*.csv"))
    return sha256_of_all(files) + plugged_in()


def kept_forecast(demand: pl.DataFrame, *, horizon: int, known: RunOff | None = None) -> ForecastResult:
    """Forecast as :func:`gpuplanner.forecast.forecast_demand` does, or give back what it said of the same demand.

    Most of the time of a walk is the backtest of its forecasts, and every command, notebook and report of one
    trace asks for the same ones.
    """
    name = _key(demand, horizon, known)
    places = {frame: cache_folder() / "forecasts" / f"{name}-{frame}.parquet" for frame in FRAMES}
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        return ForecastResult(**{frame: pl.read_parquet(place) for frame, place in places.items()})
    made = forecast_demand if known is None else functools.partial(forecast_demand, known=known)
    found = made(demand, horizon=horizon)
    with contextlib.suppress(OutputError):
        for frame, place in places.items():
            write_atomically(place, getattr(found, frame).write_parquet, guarded=False)
    return found


def _key(demand: pl.DataFrame, horizon: int, known: RunOff | None) -> str:
    bytes_of_demand = io.BytesIO()
    demand.write_ipc(bytes_of_demand)
    digest = hashlib.sha256(bytes_of_demand.getbuffer())
    digest.update(f"{horizon} {_code()}".encode())
    if known is not None:
        digest.update(f"{known.names} {known.start} {known.slot_h}".encode())
        for array in (
            known.submit,
            known.begin,
            known.end,
            known.size,
            known.limit,
            known.series,
            *known.groups,
        ):
            digest.update(array.tobytes())
    return digest.hexdigest()[:32]


@functools.cache
def _code() -> str:
    """Hash of the code that forecasts, and the version of the library that fits the models."""
    code = sha256_of_all(sorted([*(PACKAGE / "forecast").glob("*.py"), *(PACKAGE / "demand").glob("*.py")]))
    with contextlib.suppress(PackageNotFoundError):
        return f"{code} {version('statsforecast')}"
    return code
