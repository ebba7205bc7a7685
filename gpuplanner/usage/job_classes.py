"""Job classes, such as pretraining or inference, assigned by rules on names and sizes of jobs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs
from gpuplanner.core.serialization import load_yaml
from gpuplanner.ingest.source_fields import validate_time_zone
from gpuplanner.usage.rightsizing import samples_of_runs

TEXT_RULE_COLUMNS = ("job_name", "partition", "queue")
"""Columns of the job table with names that rules may test; a table may lack them."""

NUMBER_RULE_COLUMNS = (
    *("gpus", "nodes", "time_limit_s", "run_s", "wait_s", "sm_activity", "activity_spread", "memory_peak_gib"),
    *("hour", "weekday", "repeats"),
)
"""Numeric facts of a job that rules may test. ``sm_activity`` is a mean [0-1], ``activity_spread`` the standard
deviation of the minute means of SM activity [0-1]. At submission by the local clock: ``hour`` [h, 0 to 24] and
``weekday``, 1 for Monday to 7 for Sunday. ``repeats``: jobs of the same user with the same request and limit on the
same local day."""

RULE_COLUMNS_KNOWN_AT_SUBMISSION = (*TEXT_RULE_COLUMNS, "gpus", "nodes", "time_limit_s", "hour", "weekday")
"""Facts of a job that are known at submission; the other facts are known only after its run."""

SCRIPT_FILE_SUFFIX_PATTERN = r"\.(sh|bash|csh|zsh|py|r|jl|m|pl|slurm|sbatch|job|run|cmd)$"
"""Pattern of the file suffixes of job scripts, which are removed from job names."""

REPEATED_JOB_KEY_COLUMNS = ("tenant", "user", "gpus", "profile_requested", "time_limit_s")
"""Columns that are equal for repeated submissions of the same job within a day; their number is the fact ``repeats``.
"""


def job_facts(jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, tz: str = "UTC") -> pl.DataFrame:
    """Tabulate the facts of each job, such as name, GPUs and run time, that rules may test; null where unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "user": "u", "state": "PENDING",
    ...     "gpus": 1.0, "submit_time": datetime(2026, 7, 1, 23, 30, tzinfo=UTC)})
    >>> job_facts(jobs, tz="Europe/Oslo").select("hour", "weekday", "repeats").row(0)
    (1.5, 4, 2)
    """
    local = pl.col("submit_time").dt.convert_time_zone(validate_time_zone(tz))
    named = conform(jobs, Jobs, source="job classes: jobs").with_columns(
        jobs[name].cast(pl.String) if name in jobs.columns else pl.lit(None, pl.String).alias(name)
        for name in TEXT_RULE_COLUMNS
    )
    table = named.with_row_index("row").with_columns(
        run_s=(pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6,
        wait_s=(pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6,
        hour=local.dt.hour() + local.dt.minute() / 60 + local.dt.second() / 3600,
        weekday=local.dt.weekday(),
        day=local.dt.date(),
    )
    return (
        table.with_columns(
            repeats=pl.when(pl.col("user").is_not_null()).then(pl.len().over(*REPEATED_JOB_KEY_COLUMNS, "day"))
        )
        .join(_activity_statistics(table, samples), on="row", how="left", maintain_order="left")
        .with_columns(sm_activity=pl.coalesce("sm_activity", "sampled_activity"))
        .drop("row", "day", "sampled_activity")
    )


def pad_words(text: pl.Expr) -> pl.Expr:
    """Convert a job or partition name to lower-case words, with one blank before, between and behind them.

    The ending of a script is no word: ``submit.bash`` is a batch script, ``bash`` an interactive shell.

    Examples
    --------
    >>> pl.select(pad_words(pl.lit("LLM_fine-tune7b (v2)"))).item()
    ' llm fine tune b v '
    >>> pl.select(pad_words(pl.lit("submit.bash"))).item()
    ' submit '
    """
    name = text.str.to_lowercase().str.replace(SCRIPT_FILE_SUFFIX_PATTERN, "")
    return pl.concat_str(pl.lit(" "), name.str.replace_all(r"[^\p{L}]+", " ").str.strip_chars(), pl.lit(" "))


def _activity_statistics(jobs: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Compute mean and standard deviation of the SM activity [0-1] of each job over the minutes of its run."""
    return (
        samples_of_runs(jobs, samples, table_name="job classes: samples")
        .filter(pl.col("sm_activity").is_not_null())
        .group_by("row", pl.col("time").dt.truncate("1m"))
        .agg(pl.col("sm_activity").mean())
        .sort("row", "time")  # floats are added in a fixed order
        .group_by("row", maintain_order=True)
        .agg(sampled_activity=pl.col("sm_activity").mean(), activity_spread=pl.col("sm_activity").std())
    )


JOB_CLASSES = ("pretraining", "fine-tuning", "evaluation", "inference", "interactive")
"""Classes that a rule may name."""


@dataclass(frozen=True)
class NameCondition:
    """Condition of a rule: a name contains one of several words.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.usage.job_classes.TEXT_RULE_COLUMNS`.
    words : tuple of str
        Words, or several words with a blank between them, in lower case.
    """

    fact: str
    words: tuple[str, ...]

    def holds(self) -> pl.Expr:
        """Whether the condition holds; null where the name is not known."""
        return pad_words(pl.col(self.fact)).str.contains_any([f" {word} " for word in self.words])


@dataclass(frozen=True)
class RangeCondition:
    """Condition of a rule: a number is in a half-open range.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.usage.job_classes.NUMBER_RULE_COLUMNS`.
    low, high : float
        At or above `low`, below `high`; infinite where the rule does not say. Of the hour, a `low` above `high`
        passes midnight.
    """

    fact: str
    low: float
    high: float

    def holds(self) -> pl.Expr:
        """Whether the condition holds; null where the number is not known."""
        above, below = pl.col(self.fact) >= self.low, pl.col(self.fact) < self.high
        return above | below if self.low > self.high else above & below


Condition: TypeAlias = NameCondition | RangeCondition
"""A condition of a rule, on a name or on a number."""


@dataclass(frozen=True)
class Rule:
    """Rule that assigns a class to the jobs for which all its conditions hold.

    Attributes
    ----------
    name : str
        Name, unique among the rules.
    job_class : str
        Class that it gives, one of :data:`JOB_CLASSES`.
    conditions : tuple of NameCondition or RangeCondition
        What must hold, all of it.
    because, source : str
        Why the rule may be right, and who says so; empty if not stated.
    """

    name: str
    job_class: str
    conditions: tuple[Condition, ...]
    because: str = ""
    source: str = ""

    @property
    def before_run(self) -> bool:
        """Whether all facts of the rule are known at submission."""
        return all(condition.fact in RULE_COLUMNS_KNOWN_AT_SUBMISSION for condition in self.conditions)

    def holds(self) -> pl.Expr:
        """Whether all conditions hold; conditions on unknown facts do not."""
        return pl.all_horizontal(condition.holds().fill_null(False) for condition in self.conditions)


def classify_before_run(jobs: pl.DataFrame) -> pl.DataFrame:
    """Set ``job_class`` to what is known before a run: a class by observed use would leak into what is predicted."""
    return jobs.with_columns(classify_jobs(jobs, [rule for rule in shipped_rules() if rule.before_run])["job_class"])


@functools.cache
def shipped_rules() -> tuple[Rule, ...]:
    """Load the rules of ``job_class_rules.yaml``, in the order in which they are tried.

    Examples
    --------
    >>> sorted({rule.job_class for rule in shipped_rules()}) == sorted(JOB_CLASSES)
    True
    """
    file = resources.files(__package__) / "job_class_rules.yaml"
    rules = load_yaml(file.read_text("utf-8"), source=file.name)["rules"]
    return tuple(make_rule(rule) for rule in rules)


def make_rule(rule: Mapping[str, Any]) -> Rule:
    """Make a rule from an entry of ``job_class_rules.yaml``.

    Examples
    --------
    >>> make_rule({"name": "night", "class": "pretraining", "when": {"hour": {"from": 22, "below": 6}}}).conditions
    (RangeCondition(fact='hour', low=22.0, high=6.0),)
    """
    conditions = tuple(_make_condition(fact, value) for fact, value in rule["when"].items())
    return Rule(rule["name"], rule["class"], conditions, rule.get("because", ""), rule.get("source", ""))


def _make_condition(fact: str, value: Any) -> Condition:  # noqa: ANN401 - words or bounds
    """Make a condition on a fact: words of a name, folded as names are, or the bounds of a number."""
    if fact in TEXT_RULE_COLUMNS:
        folded = [pl.select(pad_words(pl.lit(word))).item() for word in value]
        return NameCondition(fact, tuple(" ".join(word.split()) for word in folded))
    return RangeCondition(fact, float(value.get("from", -math.inf)), float(value.get("below", math.inf)))


JOB_CLASS_TABLE_COLUMNS = ("job_id", "attempt", "job_class", "class_source", "rule", "facts")
"""Columns of the table that :func:`classify_jobs` returns."""


def classify_jobs(
    jobs: pl.DataFrame, rules: Sequence[Rule] | None = None, *, samples: pl.DataFrame | None = None, tz: str = "UTC"
) -> pl.DataFrame:
    """Assign a class to each job by rules, with the rule and the facts that it used.

    A class that the source gives stands, whatever a rule says. A job without a GPU gets no class from a rule.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``, with columns ``job_name``, ``partition`` and ``queue`` if there are any.
    rules : sequence of Rule, optional
        Tried in this order; by default the shipped ones.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    tz : str
        Zone of hours and days.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 6)
        In the order of `jobs`: ``job_id``, ``attempt``, ``job_class`` (null if not known), ``class_source``
        (``"source"``, ``"rule"`` or null), and of a class by a rule its name (``rule``) and the facts that it tested,
        as text (``facts``).

    Raises
    ------
    SchemaError
        If a table is not as declared.
    TraceFormatError
        If there is no such zone.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "state": "PENDING",
    ...     "submit_time": datetime(2026, 2, 2, tzinfo=UTC), "job_name": ["OOD Jupyter", "train_7b"]})
    >>> classify_jobs(jobs).select("job_class", "rule", "facts").rows()
    [('interactive', 'session by name', 'job_name=OOD Jupyter'), (None, None, None)]
    """
    rules_in_order = shipped_rules() if rules is None else tuple(rules)
    facts_of_jobs = job_facts(jobs, samples, tz=tz).rename({"job_class": "given"}).with_row_index("row")
    numbers = dict(enumerate(rules_in_order))
    first = pl.coalesce(*(pl.when(rule.holds()).then(number) for number, rule in numbers.items()), None)
    # Work without a GPU is of none of the classes; of what is not known, names may yet tell.
    holds_gpu = (pl.col("gpus") != 0).fill_null(True)
    decided = facts_of_jobs.with_columns(number=pl.when(holds_gpu).then(first).cast(pl.Int32))
    matches = []
    for number, rule in numbers.items():
        facts = pl.concat_str((_fact_text(condition.fact) for condition in rule.conditions), separator=", ")
        texts = {"by_rule": pl.lit(rule.job_class), "rule": pl.lit(rule.name), "facts": facts}
        matches.append(decided.filter(number=number).select("row", **texts))
    by_source, by_rule = pl.col("given").is_not_null(), pl.col("by_rule").is_not_null()
    source = pl.when(by_source).then(pl.lit("source")).when(by_rule).then(pl.lit("rule"))
    evidence = [pl.when(~by_source).then(name).alias(name) for name in ("rule", "facts")]
    return (
        decided.join(pl.concat(matches), on="row", how="left", maintain_order="left")
        .with_columns(*evidence, job_class=pl.coalesce("given", "by_rule"), class_source=source)
        .select(JOB_CLASS_TABLE_COLUMNS)
    )


def _fact_text(fact: str) -> pl.Expr:
    """Format a fact as ``fact=value``."""
    value = pl.col(fact).cast(pl.Float64).round_sig_figs(4) if fact in NUMBER_RULE_COLUMNS else pl.col(fact)
    text = value.cast(pl.String).str.strip_suffix(".0") if fact in NUMBER_RULE_COLUMNS else value
    return pl.concat_str(pl.lit(f"{fact}="), text)
