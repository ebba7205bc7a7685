"""What a watch remembers between looks: counts, what came of earlier looks, and plans that are still to be judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.ours import overwriting
from gpuplanner.files.place import require_file
from gpuplanner.files.text import to_json
from gpuplanner.files.single import write_atomically
from gpuplanner.plain import of_plain, to_plain
from gpuplanner.planner.contract.plan import plan_from_json, plan_to_json
from gpuplanner.study.recurring.nodes_seen import nodes_changed
from gpuplanner.study.recurring.watch import FleetLook, PastAdvice

STATE, METRICS, PAGE, PACK, LOOKS = "watch.json", "watch.prom", "watch.html", "pack", "looks"
PLANS = "????-??-??T??????Z.json"
"""Names of the plans in the folder of looks."""
FORMAT = "gpuplanner.watch/3"
KEPT_LOOKS = 400
"""Looks of which the state tells one by one; all of them are in its sums."""


@dataclass(frozen=True)
class PastLook:
    """One look: what it expected, and what came of its plan once the hours to the look after are over [GPU h].

    - ``gain``, ``chance``: Of the plan over the fleet as it is, as expected, in so many ``slots``.
    - ``realised``: The same by the demand that came; None before that is known.
    - ``regret``: What was advised (the plan where a pack was written, else the fleet as it is) over hindsight.
    """

    at: str
    pack: bool
    gain: float
    chance: float
    realised: float | None = None
    regret: float | None = None
    slots: int = 1

    @property
    def file(self) -> str:
        """Name of its plan, which is kept until it is judged."""
        return f"{self.at.replace(':', '')}.json"


@dataclass(frozen=True)
class JobAdvice:
    """A running job that is going to be too large for what it has, and what to do."""

    job_id: str
    tenant: str
    profile: str
    next_profile: str
    restart_gpu_hours: float | None
    advice: str


@dataclass(frozen=True)
class Watched:
    """What a watch remembers between looks, and what its metrics say; sums are of all looks that were judged."""

    data: str = ""
    at: str = ""
    gpus: int = 0
    looks: int = 0
    packs: int = 0
    failures: int = 0
    gain: float = 0.0
    chance: float = 0.0
    judged: int = 0
    realised: float = 0.0
    regret: float = 0.0
    pack_at: str = ""
    sentence: str = ""
    past: tuple[PastLook, ...] = ()
    jobs: tuple[JobAdvice, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> str:
        """The state as Prometheus reads it from a file of the node exporter's text collector."""
        told = {
            "looks_total": ("counter", self.looks, "Looks at the fleet."),
            "packs_total": ("counter", self.packs, "Change packs written."),
            "failures_total": ("counter", self.failures, "Looks and readings that failed."),
            "gain_gpu_hours": ("gauge", self.gain, "Gain of the last plan over the fleet as it is."),
            "chance_ratio": ("gauge", self.chance, "Chance that the last plan pays, changes paid for."),
            "judged_total": ("counter", self.judged, "Looks whose hours are over."),
            "realised_gpu_hours": ("gauge", self.realised, "Gain of the packs of judged looks by what came."),
            "regret_gpu_hours_total": ("counter", self.regret, "Regret of judged looks against hindsight."),
            "jobs_to_move": ("gauge", len(self.jobs), "Running jobs that outgrow what they hold."),
        }
        return "".join(
            f"# HELP gpuplanner_watch_{name} {words}\n# TYPE gpuplanner_watch_{name} {kind}\n"
            f"gpuplanner_watch_{name} {value:.10g}\n"
            for name, (kind, value, words) in told.items()
        )

    def after(self, found: FleetLook, data: str) -> Watched:
        """What is remembered after a look at data of this hash."""
        at, gpus = instant(found.at), found.planned.problem.gpus
        if at < self.at:
            what, todo = (
                "watch: end of the data",
                "Look at the clock of the source; the state stays as it is.",
            )
            raise ScenarioError(message(what, f"{self.at}, which was seen, or later", at, todo))
        words = found.sentence
        if changed := nodes_changed(self.nodes, found.nodes):
            words += f" {changed}"
        elif self.gpus and gpus != self.gpus:
            words += f" The fleet has {gpus:,} GPUs, at the look before {self.gpus:,}."
        if self.pack_at and not found.worth:
            words += f" The pack of {self.pack_at} is not confirmed by this look."
        gain, chance = round(found.verdict.gain, 6), round(found.verdict.chance, 6)
        came = found.came
        past = [
            replace(one, realised=came[one.at].gain, regret=came[one.at].regret) if one.at in came else one
            for one in self.past
            if one.at != at
        ]
        newly = [one for one in past if one.at in came]
        return replace(
            self, data=data, at=at, gpus=gpus, looks=self.looks + 1, packs=self.packs + found.worth,
            gain=gain, chance=chance, sentence=words, pack_at=at if found.worth else self.pack_at,
            judged=self.judged + len(newly),
            realised=round(self.realised + sum(one.realised or 0.0 for one in newly if one.pack), 6),
            regret=round(self.regret + sum(one.regret or 0.0 for one in newly), 6),
            past=(*past, PastLook(at, found.worth, gain, chance, slots=found.slots))[-KEPT_LOOKS:],
            nodes=found.nodes,
            jobs=tuple(of_plain(JobAdvice, row) for row in found.jobs.to_dicts()),
        )  # fmt: skip

    def table(self) -> pl.DataFrame:
        """Its looks, the last one first."""
        schema = {
            "at": pl.String, "pack": pl.Boolean, "gain": pl.Float64, "chance": pl.Float64, "realised": pl.Float64,
            "regret": pl.Float64,
        }  # fmt: skip
        rows = [{name: vars(one)[name] for name in schema} for one in reversed(self.past)]
        return pl.DataFrame(rows, schema=schema)


def instant(at: datetime) -> str:
    """An instant of the state, whose texts stand in the order of time."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def state_of(out: Path) -> Watched:
    """The state of a folder; of an empty one, nothing seen yet."""
    place = out / STATE
    if not place.exists():
        return Watched()
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise ValueError(place.name)
        return of_plain(Watched, values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = message(str(place), f"a state of {FORMAT!r}", str(error), "Move it away; counts begin anew.")
        raise ScenarioError(text) from None


def advice_of(out: Path, state: Watched) -> Mapping[str, PastAdvice]:
    """Plans of looks that are still to be judged, by when they were made; one that is gone is not judged."""
    open_looks = {one.at: out / LOOKS / one.file for one in state.past if one.regret is None}
    there = {one.at: (one.pack, one.slots) for one in state.past}
    return {
        at: PastAdvice(*plan_from_json(place.read_text(encoding="utf-8")), *there[at])
        for at, place in open_looks.items()
        if place.exists()
    }


def keep(out: Path, state: Watched, found: FleetLook | None = None) -> None:
    """Plan, metrics and state, each whole or not at all; the state last, so that a killed look is looked at again."""
    folder = out / LOOKS
    open_looks = {one.file for one in state.past if one.regret is None}
    if found is not None:
        text = plan_to_json(found.planned.plan, found.planned.problem)
        place = folder / state.past[-1].file
        write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"), guarded=False)
    write_record(out / METRICS, state.metrics())
    write_record(out / STATE, to_json({"format": FORMAT} | to_plain(state)))
    for place in folder.glob(PLANS):
        if place.name not in open_looks:
            place.unlink()


def require_free(out: Path) -> None:
    """Refuse a folder without a state in which files of others have the names that ``watch`` writes."""
    if not (out / STATE).exists():
        for name in (PAGE, METRICS):
            require_file(out / name)


def write_record(place: Path, text: str) -> None:
    """Write a file of the folder, whose names were free when it began."""
    with overwriting():
        write_atomically(place, lambda new: new.write_text(text, encoding="utf-8"))
