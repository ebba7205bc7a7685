"""Job classes by rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from gpuplanner.core.errors import ScenarioError, examples, nearest
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs
from gpuplanner.core.serialization import LinedMapping, read_yaml
from gpuplanner.ingest.source_fields import known_zone
from gpuplanner.usage.rightsizing import samples_of_runs

TEXTS = ("job_name", "partition", "queue")
"""Names, where the table has such columns; ``schemas.Jobs`` alone has none of them."""

NUMBERS = {
    "gpus": "GPUs",
    "nodes": "nodes",
    "time_limit_s": "s",
    "run_s": "s",
    "wait_s": "s",
    "sm_activity": "0-1, mean",
    "activity_spread": "0-1, standard deviation of the minute means of SM activity",
    "memory_peak_gib": "GiB",
    "hour": "hours of the local clock at submission, 0 to 24",
    "weekday": "1 for Monday to 7 for Sunday, at submission",
    "repeats": "jobs of the same user with the same request and limit on the same local day",
}
"""Numbers with their units."""

BEFORE_RUN = (*TEXTS, "gpus", "nodes", "time_limit_s", "hour", "weekday")
"""Facts that are known when a job is submitted; the others are known of its past alone."""

SCRIPT_ENDING = r"\.(sh|bash|csh|zsh|py|r|jl|m|pl|slurm|sbatch|job|run|cmd)$"
"""Endings of the names of scripts."""

REQUEST = ("tenant", "user", "gpus", "profile_requested", "time_limit_s")


def job_facts(jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, tz: str = "UTC") -> pl.DataFrame:
    """Facts of each job, null where they are not known.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "user": "u", "state": "PENDING",
    ...     "gpus": 1.0, "submit_time": datetime(2026, 7, 1, 23, 30, tzinfo=UTC)})
    >>> job_facts(jobs, tz="Europe/Oslo").select("hour", "weekday", "repeats").row(0)
    (1.5, 4, 2)
    """
    local = pl.col("submit_time").dt.convert_time_zone(known_zone(tz))
    named = conform(jobs, Jobs, where="job classes: jobs").with_columns(
        jobs[name].cast(pl.String) if name in jobs.columns else pl.lit(None, pl.String).alias(name) for name in TEXTS
    )
    table = named.with_row_index("row").with_columns(
        run_s=(pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6,
        wait_s=(pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6,
        hour=local.dt.hour() + local.dt.minute() / 60 + local.dt.second() / 3600,
        weekday=local.dt.weekday(),
        day=local.dt.date(),
    )
    return (
        table.with_columns(repeats=pl.when(pl.col("user").is_not_null()).then(pl.len().over(*REQUEST, "day")))
        .join(_steadiness(table, samples), on="row", how="left", maintain_order="left")
        .with_columns(sm_activity=pl.coalesce("sm_activity", "sampled_activity"))
        .drop("row", "day", "sampled_activity")
    )


def spaced(text: pl.Expr) -> pl.Expr:
    """Words of a name in small letters, with one blank before, between and behind them.

    The ending of a script is no word: ``submit.bash`` is sent off, ``bash`` is typed into.

    Examples
    --------
    >>> pl.select(spaced(pl.lit("LLM_fine-tune7b (v2)"))).item()
    ' llm fine tune b v '
    >>> pl.select(spaced(pl.lit("submit.bash"))).item()
    ' submit '
    """
    name = text.str.to_lowercase().str.replace(SCRIPT_ENDING, "")
    return pl.concat_str(pl.lit(" "), name.str.replace_all(r"[^\p{L}]+", " ").str.strip_chars(), pl.lit(" "))


def _steadiness(jobs: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Mean and standard deviation of SM activity over the minutes that a job held its GPUs."""
    return (
        samples_of_runs(jobs, samples, where="job classes: samples")
        .filter(pl.col("sm_activity").is_not_null())
        .group_by("row", pl.col("time").dt.truncate("1m"))
        .agg(pl.col("sm_activity").mean())
        .sort("row", "time")  # floats are added in a fixed order
        .group_by("row", maintain_order=True)
        .agg(sampled_activity=pl.col("sm_activity").mean(), activity_spread=pl.col("sm_activity").std())
    )


CLASSES = ("pretraining", "fine-tuning", "evaluation", "inference", "interactive")
"""Classes that a rule may name."""

MAX_TEXT = 200


@dataclass(frozen=True)
class Words:
    """Condition: one of the words stands in a name.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.usage.job_classes.TEXTS`.
    words : tuple of str
        Words, or several words with a blank between them, in small letters.
    """

    fact: str
    words: tuple[str, ...]

    def holds(self) -> pl.Expr:
        """Whether the condition holds; null where the name is not known."""
        return spaced(pl.col(self.fact)).str.contains_any([f" {word} " for word in self.words])


@dataclass(frozen=True)
class Range:
    """Condition: a number lies in a half-open range.

    Attributes
    ----------
    fact : str
        One of :data:`~gpuplanner.usage.job_classes.NUMBERS`.
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


Condition: TypeAlias = Words | Range


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes
    ----------
    name : str
        Name, unique among the rules of a file.
    job_class : str
        Class that it gives, one of :data:`CLASSES`.
    conditions : tuple of Words or Range
        What must hold, all of it.
    because, source : str
        Why the rule may be right, and who says so; empty if the file does not say.
    """

    name: str
    job_class: str
    conditions: tuple[Condition, ...]
    because: str = ""
    source: str = ""

    @property
    def before_run(self) -> bool:
        """Whether everything that the rule looks at is known at submission."""
        return all(condition.fact in BEFORE_RUN for condition in self.conditions)

    def holds(self) -> pl.Expr:
        """Whether all conditions hold; what is not known does not hold."""
        return pl.all_horizontal(condition.holds().fill_null(False) for condition in self.conditions)


@functools.cache
def shipped_rules() -> tuple[Rule, ...]:
    """Rules that come with the package.

    Examples
    --------
    >>> sorted({rule.job_class for rule in shipped_rules()}) == sorted(CLASSES)
    True
    """
    with resources.as_file(resources.files(__package__) / "job_class_rules.yaml") as path:
        return read_rules(path)


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    r"""Read rules from a YAML file, in the order in which they are tried.

    Parameters
    ----------
    path : str or Path
        File with one key, ``rules``: a list of mappings with ``name``, ``class``, ``when`` and, if wanted,
        ``because`` and ``source``. ``when`` maps facts to lists of words, or to ``{from: low, below: high}``.

    Returns
    -------
    tuple of Rule
        At least one.

    Raises
    ------
    ScenarioError
        If the file cannot be read, or a key, value or name is not as declared; the message names the line, the
        value and the nearest key.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rules.yaml"
    ...     _ = path.write_text("rules:\n- {name: big, class: pretraining, when: {gpu: {from: 64}}}\n")
    ...     read_rules(path)
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: ...rules.yaml line 2, rule 'big', when: expected one of ...; got 'gpu'. Did
    you mean 'gpus'?
    """
    where = Path(path).name
    document = read_yaml(path)
    listed = _mapping(document, ("rules",), where).get("rules")
    if not isinstance(listed, list) or not listed:
        raise _fault(where, "'rules' with a list of at least one rule", listed, "Add rules.")
    rules = tuple(_rule(item, f"{where}, rule {number}") for number, item in enumerate(listed, start=1))
    names = [rule.name for rule in rules]
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise _fault(where, "rules of different names", examples(again), "Rename one of each.")
    return rules


def _rule(item: object, where: str) -> Rule:
    known = _mapping(item, ("name", "class", "because", "source", "when"), where)
    where = _at(where, known, "name")
    name = _text(known, "name", where)
    where = f"{where.rpartition(', ')[0]}, rule {name!r}"
    job_class = _text(known, "class", where)
    if job_class not in CLASSES:
        raise _not_of(CLASSES, job_class, _at(where, known, "class") + ", class")
    if "when" not in known:
        raise _fault(where, "'when' with at least one condition", "none", "Add when.")
    when = _mapping(known["when"], (*TEXTS, *NUMBERS), f"{_at(where, known, 'when')}, when")
    if not when:
        raise _fault(_at(where, known, "when"), "at least one condition in 'when'", "none", "Add one.")
    places = {fact: f"{_at(where, when, fact)}, {fact}" for fact in when}
    conditions = tuple(_condition(fact, value, places[fact]) for fact, value in when.items())
    because, source = (_text(known, key, where) if key in known else "" for key in ("because", "source"))
    return Rule(name, job_class, conditions, because, source)


def _condition(fact: str, value: object, where: str) -> Condition:
    if fact in TEXTS:
        words = value if isinstance(value, list) else [value]
        # The same folding as of names, on one word.
        folded = [pl.select(spaced(pl.lit(word))).item() for word in words if isinstance(word, str)]
        good = [" ".join(word.split()) for word in folded]
        if not words or len(good) < len(words) or not all(good):
            raise _fault(where, "a list of words", value, "Write for example [eval, benchmark].")
        return Words(fact, tuple(good))
    if not isinstance(value, dict):
        raise _fault(where, "{from: ..., below: ...}", value, "Give one bound or both.")
    bounds = _mapping(value, ("from", "below"), where)
    for key, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            place = f"{_at(where, bounds, key)}, {key}"
            raise _fault(place, "a number", bound, f"Unit: {NUMBERS[fact]}.")
    low, high = float(bounds.get("from", -math.inf)), float(bounds.get("below", math.inf))
    if not bounds or low == high or (low > high and fact != "hour"):
        raise _fault(where, "a range that holds something", dict(value), "Put 'from' below 'below'.")
    return Range(fact, low, high)


def _mapping(value: object, keys: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """The mapping itself, if it has no keys but these."""
    if not isinstance(value, dict):
        todo = "See the shipped job_class_rules.yaml."
        raise _fault(where, f"a mapping with {', '.join(keys)}", value, todo)
    for key in value:
        if key not in keys:
            raise _not_of(keys, key, _at(where, value, key))
    return value


def _text(known: Mapping[str, Any], key: str, where: str) -> str:
    value = known.get(key)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_TEXT:
        place = f"{_at(where, known, key)}, {key}"
        raise _fault(place, f"up to {MAX_TEXT} letters on one line", value, "Write it.")
    return value


def _at(where: str, known: Mapping[str, Any], key: str) -> str:
    """The place with the line of a key put behind the file name."""
    line = known.lines.get(key) if isinstance(known, LinedMapping) else None
    if line is None:
        return where
    file, comma, rest = where.partition(", ")
    return f"{file.partition(' line ')[0]} line {line}{comma}{rest}"


def _not_of(known: tuple[str, ...], got: object, where: str) -> ScenarioError:
    near = nearest(str(got), known)
    todo = f"Did you mean {near[0]!r}?" if near else "Use one of these."
    return _fault(where, f"one of {', '.join(known)}", got, todo)


def _fault(where: str, expected: str, got: object, todo: str) -> ScenarioError:
    shown = got if isinstance(got, str) and got == "none" else repr(got)
    return ScenarioError(where, expected, shown[:MAX_TEXT], todo)


COLUMNS = ("job_id", "attempt", "job_class", "class_source", "rule", "facts")


def classify(
    jobs: pl.DataFrame,
    rules: Sequence[Rule] | None = None,
    *,
    samples: pl.DataFrame | None = None,
    tz: str = "UTC",
) -> pl.DataFrame:
    """Name the class of each job, with the rule that did so and what it saw.

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
        (``"source"``, ``"rule"`` or null), and of a class by a rule ``rule`` (its name) and ``facts`` (what it looked
        at).

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
    >>> classify(jobs).select("job_class", "rule", "facts").rows()
    [('interactive', 'session by name', 'job_name=OOD Jupyter'), (None, None, None)]
    """
    tried = shipped_rules() if rules is None else tuple(rules)
    seen = job_facts(jobs, samples, tz=tz).rename({"job_class": "given"}).with_row_index("row")
    numbers = dict(enumerate(tried))
    first = pl.coalesce(*(pl.when(rule.holds()).then(number) for number, rule in numbers.items()), None)
    # Work without a GPU is of none of the classes; of what is not known, names may yet tell.
    holds_gpu = (pl.col("gpus") != 0).fill_null(True)
    decided = seen.with_columns(number=pl.when(holds_gpu).then(first).cast(pl.Int32))
    named = []
    for number, rule in numbers.items():
        facts = pl.concat_str((_shown(condition.fact) for condition in rule.conditions), separator=", ")
        texts = {"by_rule": pl.lit(rule.job_class), "rule": pl.lit(rule.name), "facts": facts}
        named.append(decided.filter(number=number).select("row", **texts))
    by_source, by_rule = pl.col("given").is_not_null(), pl.col("by_rule").is_not_null()
    source = pl.when(by_source).then(pl.lit("source")).when(by_rule).then(pl.lit("rule"))
    evidence = [pl.when(~by_source).then(name).alias(name) for name in ("rule", "facts")]
    return (
        decided.join(pl.concat(named), on="row", how="left", maintain_order="left")
        .with_columns(*evidence, job_class=pl.coalesce("given", "by_rule"), class_source=source)
        .select(COLUMNS)
    )


def _shown(fact: str) -> pl.Expr:
    """``fact=value`` as text."""
    value = pl.col(fact).cast(pl.Float64).round_sig_figs(4) if fact in NUMBERS else pl.col(fact)
    text = value.cast(pl.String).str.strip_suffix(".0") if fact in NUMBERS else value
    return pl.concat_str(pl.lit(f"{fact}="), text)


SIZES = (0.99, 1.99, 7.99, 31.99)
LENGTHS_S = (600.0, 3600.0, 14_400.0, 86_400.0)
HOURS = (8, 20)
CELL = ("size", "length", "hours")
FEWEST, SURE = 5, 0.5
"""Jobs of known class that a cell must have, and the share of them that must be of one class."""


def class_by_shape(jobs: pl.DataFrame, known: pl.Series, *, tz: str = "UTC") -> pl.DataFrame:
    """Give each job without a class that of most jobs of its size, duration and hour, if more than half are of it.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``gpus, submit_time`` and ``run_s`` [s].
    known : polars.Series
        Class of each where it is known, by the source or by a rule, else null.
    tz : str
        Zone of the hours.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 2)
        In the order of `jobs`: ``job_class``, null where it stays undecided, and ``confidence``, the share of those
        like it that are of this class [0-1]; null where the class was known.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"gpus": [1.0] * 7 + [8.0], "run_s": 120.0})
    >>> jobs = jobs.with_columns(submit_time=datetime(2026, 2, 2, tzinfo=UTC))
    >>> known = pl.Series(["evaluation"] * 5 + ["interactive", None, None])
    >>> class_by_shape(jobs, known).tail(2).rows()
    [('evaluation', 0.8333333333333334), (None, None)]
    """
    hour = pl.col("submit_time").dt.convert_time_zone(known_zone(tz)).dt.hour()
    table = jobs.select(
        size=pl.sum_horizontal(pl.col("gpus") > edge for edge in SIZES),
        length=pl.sum_horizontal(pl.col("run_s") > edge for edge in LENGTHS_S),
        hours=hour.is_between(*HOURS, closed="left"),
    ).with_columns(known=known)
    counts = table.drop_nulls("known").group_by(*CELL, "known").len()
    counts = counts.sort("len", "known", descending=[True, False])
    total = pl.col("len").sum()
    best = (
        counts.group_by(CELL, maintain_order=True)
        .agg(like=pl.col("known").first(), confidence=pl.col("len").first() / total, jobs=total)
        .filter(pl.col("jobs") >= FEWEST, pl.col("confidence") > SURE)
    )
    return table.join(best, on=CELL, how="left", nulls_equal=True, maintain_order="left").select(
        job_class=pl.coalesce("known", "like"),
        confidence=pl.when(pl.col("known").is_null()).then("confidence"),
    )
