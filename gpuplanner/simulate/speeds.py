"""How fast classes of jobs run on an instance of each profile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.hardware import GpuModel
from gpuplanner.names import resolve
from gpuplanner.schemas import WHOLE_GPU, check
from gpuplanner.simulate.slices.world import NONE, Floats, Ints
from gpuplanner.sizing.speed.speed_tables import SpeedTable

COLUMNS = ("speed", "speed_low", "speed_high")


@dataclass(frozen=True, eq=False)
class Speeds:
    """Speeds relative to the whole GPU, in place of the rule that goes by SMs.

    A job of a class runs ``1 / speed`` times as long as ``run_s`` on an instance. A job without a class goes by
    ``sms_needed``, as without this table.

    Parameters
    ----------
    table : polars.DataFrame
        ``job_class``, ``profile``, ``speed``, ``speed_low`` and ``speed_high``, above 0 and up to 1.
    column : {"speed", "speed_low", "speed_high"}
        Which of them holds: simulate with each to see what the uncertainty of the speeds does.

    Raises
    ------
    SchemaError
        If the table is not as described.

    Examples
    --------
    >>> table = pl.DataFrame({"job_class": ["bert"], "profile": ["3g.40gb"], "speed": [0.5],
    ...     "speed_low": [0.4], "speed_high": [0.6]})
    >>> Speeds(table, column="speed_low").table["speed_low"].to_list()
    [0.4]
    """

    table: pl.DataFrame
    column: str = "speed"

    def __post_init__(self) -> None:
        """Check the table."""
        column = resolve(self.column, COLUMNS, what="speeds: column", error=SchemaError)
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "table", check(self.table, SpeedTable, where="speeds"))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Classes of the table, in its order."""
        return tuple(self.table["job_class"].unique(maintain_order=True))


def kinds_of(jobs: pl.DataFrame, speeds: Speeds | None) -> Ints:
    """Number of the class of every job; ``NONE`` where there is none."""
    if speeds is None:
        return np.full(jobs.height, NONE)
    numbers = {name: number for number, name in enumerate(speeds.classes)}
    unknown = jobs.filter(~pl.col("job_class").is_in(list(numbers)))["job_class"].unique(maintain_order=True)
    if len(unknown):
        text = message(
            "jobs to simulate: column 'job_class'",
            f"classes of the table of speeds, {examples(list(numbers))}, or null",
            examples(unknown.to_list()),
            "Add rows for them, or leave the class out to go by sms_needed.",
        )
        raise SchemaError(text)
    found = jobs["job_class"].replace_strict(numbers, default=NONE, return_dtype=pl.Int64)
    return found.fill_null(NONE).to_numpy()


def slowdowns(
    speeds: Speeds | None, board: GpuModel, profiles: tuple[str, ...], wanted: Ints, substitutes: Ints
) -> Floats:
    """Run time on an instance over that on the whole GPU, shape (n_classes, n_profiles); NaN where it is not needed."""
    if speeds is None:
        return np.zeros((0, len(profiles)))
    found = np.full((len(speeds.classes), len(profiles)), np.nan)
    found[:, 0] = 1.0
    class_of = {name: number for number, name in enumerate(speeds.classes)}
    profile_of = {name: number for number, name in enumerate(profiles)}
    for name, profile, speed in speeds.table.select("job_class", "profile", speeds.column).iter_rows():
        known = profile if profile == WHOLE_GPU else board.profile(profile).name
        if known in profile_of and known != WHOLE_GPU:
            found[class_of[name], profile_of[known]] = 1.0 / speed
    missing = {
        (speeds.classes[kind], profiles[able])
        for kind, profile in np.unique(wanted, axis=0).tolist()
        for able in (profile, *(other for other in substitutes[profile].tolist() if other != NONE))
        if np.isnan(found[kind, able])
    }
    if missing:
        text = message(
            "speeds",
            "a row for every profile that a job of a class may be served on",
            f"none for {examples([f'{name} on {profile}' for name, profile in sorted(missing)])}",
            "Add them, or use Rules(substitute=False) if jobs only get the profile that they ask for.",
        )
        raise SchemaError(text)
    return found
