"""The study: what comes out of the walk, as tables and figures that every door shows alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import ScenarioError, first_line, message
from gpuplanner.files.manifest import Mark
from gpuplanner.files.folder import replaced_directory
from gpuplanner.files.text import to_json
from gpuplanner.plain import of_plain, to_plain
from gpuplanner.planner.contract.plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import Comparison
from gpuplanner.study.decision.types import Decision
from gpuplanner.study.future.calm import PlanChoice
from gpuplanner.study.future.fixed_layout import OverFixed
from gpuplanner.study.headline import Headline
from gpuplanner.study.provenance import Provenance

TABLES = "tables"
"""Folder of the tables in that of a report."""
JSON_TABLES = (
    "ledger_buckets", "ledger_tenants", "rightsizing", "scores", "layout_counts", "layout_changes", "costs", "energy",
    "weeks", "quality",
)  # fmt: skip
"""Tables small enough to stand in study.json as well."""
OLD_MARK = Mark("study.json", '"plan_bound_gpu_hours"', names=("plan.json", "scenario.yaml", "*.parquet"))
FIRST_MARK = Mark("study.json", "gpuplanner study 1", names=OLD_MARK.names)
MARK = Mark("study.json", "gpuplanner study 2", names=OLD_MARK.names, older=(FIRST_MARK, OLD_MARK))


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that a report, a workbook or a notebook shows.

    Attributes
    ----------
    scenario : Scenario
        What was asked.
    headline : Headline
        Figures by name, rounded once; report, workbook and JSON print these.
    findings : tuple of str
        Three findings in words.
    tables : mapping of str to polars.DataFrame
        All tables.
    plan, problem : Plan, PlanProblem, or None
        The planned calendar and what it answers; None where the history is too short to plan from, and then the
        tables of demand, forecast and plan are absent as well.
    plan_choices : tuple of PlanChoice
        The plan with few sets of layouts, and the one that is free to change; empty where the plan is free already.
    over_fixed : OverFixed or None
        What the plan wins over the best fixed layout; None without a plan.
    comparison : Comparison
        All ways to run the fleet, and the decision that follows, as ``gpuplanner compare --json`` prints them: the one
        place that says what is saved. See :func:`gpuplanner.study.decision.record.comparison`.
    provenance : Provenance
        Inputs with hashes, versions, assumptions with sources.
    """

    scenario: Scenario
    headline: Headline
    findings: tuple[str, ...]
    tables: Mapping[str, pl.DataFrame]
    plan: Plan | None
    problem: PlanProblem | None
    plan_choices: tuple[PlanChoice, ...]
    over_fixed: OverFixed | None
    comparison: Comparison
    provenance: Provenance

    @property
    def decision(self) -> Decision:
        """What to do: every figure of the first screen is read from here."""
        return self.comparison.decision

    def to_json(self) -> str:
        """The study as JSON: the same input and seed give the same bytes."""
        tables = {name: _rows(self.tables[name]) for name in JSON_TABLES if name in self.tables}
        comparison = self.comparison.to_dict()
        return to_json(
            {
                "scenario": to_plain(self.scenario),
                "headline": self.headline.to_dict(),
                "findings": list(self.findings),
                "plan_choices": to_plain(self.plan_choices),
                "plan": {"over_fixed": to_plain(self.over_fixed)},
                "decision": comparison["decision"],
                "comparison": comparison,
                "provenance": to_plain(self.provenance),
                "tables": tables,
            }
        )

    def save(self, directory: str | Path) -> Path:
        """Write the study as a folder that :func:`open_study` reads."""
        with replaced_directory(directory, mark=MARK) as folder:
            (folder / "study.json").write_text(self.to_json(), encoding="utf-8")
            if self.plan is not None and self.problem is not None:
                (folder / "plan.json").write_text(plan_to_json(self.plan, self.problem), encoding="utf-8")
            (folder / "scenario.yaml").write_text(self.scenario.to_yaml(), encoding="utf-8")
            for name, table in self.tables.items():
                table.write_parquet(folder / f"{name}.parquet")
        return Path(directory)


def open_study(directory: str | Path) -> Study:
    """Read a folder written by :meth:`Study.save`, or that of a report.

    Raises
    ------
    ScenarioError
        If it is not such a folder.
    """
    folder = Path(directory)
    try:
        values = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        kept = folder / "plan.json"
        planned = plan_from_json(kept.read_text(encoding="utf-8")) if _has_plan(values) else (None, None)
        scenario = Scenario(**values["scenario"])
        kept_tables = sorted(folder.glob("*.parquet")) or sorted((folder / TABLES).glob("*.parquet"))
        tables = {path.stem: pl.read_parquet(path) for path in kept_tables}
        beside = tuple(of_plain(PlanChoice, one) for one in values["plan_choices"])
        found = Study(
            scenario=scenario,
            headline=Headline.of_dict(values["headline"]),
            findings=tuple(values["findings"]),
            tables=tables,
            plan=planned[0],
            problem=planned[1],
            plan_choices=beside,
            over_fixed=of_plain(OverFixed, over) if (over := values["plan"]["over_fixed"]) else None,
            comparison=Comparison.from_dict(values["comparison"]),
            provenance=of_plain(Provenance, values["provenance"]),
        )
    except KeyError as missing:
        text = message(
            str(folder), f"a study with {missing}", "one without, of an older version", "Evaluate again."
        )
        raise ScenarioError(text) from missing
    except (OSError, ValueError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
        text = message(str(folder), "a folder written by a study", first_line(error), "Evaluate again.")
        raise ScenarioError(text) from error
    return found


def _has_plan(values: Mapping[str, Any]) -> bool:
    return values["headline"]["plan_status"] is not None


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows that JSON can hold: instants as ISO text, money as text with its cents."""
    plain = table.with_columns(
        pl.col(pl.Datetime("us", "UTC")).dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        pl.col(pl.Date).cast(pl.String),
        pl.col(pl.Decimal).cast(pl.String),
        pl.col(pl.Enum, pl.Categorical).cast(pl.String),
    )
    return [
        {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}
        for row in plain.iter_rows(named=True)
    ]
