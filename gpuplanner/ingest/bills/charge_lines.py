"""Steps that all bills share: tags, currencies, and which files of a delivery count.

Providers deliver a bill as a folder of parts. Each refresh of a period repeats all of it, often beside the older
ones, so that the parts of two refreshes must never be added: what counts is said by manifests [1]_ [2]_ [3]_.

References
----------
.. [1] AWS, Cost and Usage Reports user guide, "Viewing report files": ``yyyymmdd-yyyymmdd/assemblyId/``, and a manifest
   with ``assemblyId`` and ``reportKeys`` in both folders; the one above is that of the newest assembly.
.. [2] AWS, Data Exports user guide, "Understanding export delivery": ``data/BILLING_PERIOD=yyyy-mm/`` and
   ``metadata/BILLING_PERIOD=yyyy-mm/``, whose manifest has ``dataFiles``.
.. [3] Microsoft, Cost Management, "Export data": ``yyyymmdd-yyyymmdd/runId/manifest.json`` with ``blobs`` and the
   ``submittedTime`` of the run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.ingest.bills.bill_summary import GPU_HOUR_UNITS, gpu_lines, looks_like_gpus
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import PLACE, Rows
from gpuplanner.ingest.job_table import assemble_reading
from gpuplanner.ingest.quality_report import Check, Finding, source_check, source_finding
from gpuplanner.ingest.source_fields import Dialect, header_names
from gpuplanner.ingest.text_files import head, read_document

MANIFEST = "manifest.json"
"""End of the name of every manifest, in small letters."""

PART = re.compile(r"\.(?:csv|parquet|avro|orc)(?:\.(?:gz|zip|zst|bz2|xz))?$", re.IGNORECASE)
"""End of the name of every part; those of a format that is not read are named by the error, not passed over."""

PERIOD = re.compile(r"(?<![^/])(?:BILLING_PERIOD=\d{4}-\d{2}|\d{8}-\d{8}|year=\d{4}/month=\d{1,2})(?=/)")
"""Folders of a billing period."""

MADE = re.compile(r"\d{4}-?\d{2}-?\d{2}T\d{2}:?\d{2}:?\d{2}[.\d]*Z")
"""Instant in the name of the folder of a refresh."""

REMEDY = "Give the folder as it was delivered, or the files themselves."


@dataclass(frozen=True)
class Delivery:
    """What is to be read.

    - ``files``: In the order of the folders, and by name within one.
    - ``left_out``: Parts in the folders that no counting manifest lists: older refreshes.
    """

    files: tuple[Path, ...]
    left_out: tuple[Path, ...]


@dataclass(frozen=True)
class Manifest:
    """A list of parts: where it lies, of which export and period, when it was made ("" if not told), their keys."""

    path: PurePosixPath
    export: str
    period: str
    made: str
    keys: tuple[str, ...]


def delivered(paths: Iterable[str | Path]) -> Delivery:
    """Files to read: those given, and the parts that count in each folder given.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for run, time in (("new", "2025-09-03T00:00:00Z"), ("old", "2025-09-02T00:00:00Z")):
    ...         place = Path(folder) / "20250901-20250930" / run
    ...         place.mkdir(parents=True)
    ...         _ = (place / "part_0.csv").write_text(run)
    ...         text = json.dumps({"blobs": [{"blobName": f"x/{run}/part_0.csv"}], "runInfo": {"submittedTime": time}})
    ...         _ = (place / "manifest.json").write_text(text)
    ...     [path.read_text() for path in delivered([folder]).files]
    ['new']
    """
    files: list[Path] = []
    left_out: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        parts, manifests = _inside(path)
        newest = _newest(path, manifests)
        chosen = [part for manifest in newest for part in _parts_of(path, manifest, parts)]
        if not manifests:
            _require_one_refresh(path, parts)
            chosen = parts
        _require_one_kind(path, chosen)
        files += [path / part for part in dict.fromkeys(chosen)]
        left_out += [path / part for part in parts if part not in set(chosen)]
    return Delivery(tuple(files), tuple(left_out))


def _inside(folder: Path) -> tuple[list[PurePosixPath], list[Manifest]]:
    """Parts and manifests in a folder, by their paths below it; hidden ones are passed over."""
    hidden = (".", "_")
    inside = sorted(path for path in _walk(folder) if not any(name.startswith(hidden) for name in path.parts))
    parts = [path for path in inside if PART.search(path.name)]
    if not parts:
        got = examples([str(path) for path in inside]) if inside else "a folder with nothing in it"
        _refuse(folder, "parts of a bill, as .csv, .csv.gz or .parquet", got)
    return parts, [_manifest(folder, path) for path in inside if path.name.lower().endswith(MANIFEST)]


def _walk(folder: Path) -> list[PurePosixPath]:
    """Every file in a folder; what cannot be listed or leads out of it is an error, since parts would be missed."""

    def refuse(error: OSError) -> None:
        _refuse(error.filename, "a readable folder", error.strerror or str(error))

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        links = [str(Path(place, name)) for name in folders if Path(place, name).is_symlink()]
        if links:
            _refuse(links[0], "a folder of the delivery", "a link to a folder")
        found += [PurePosixPath(Path(place, name).relative_to(folder).as_posix()) for name in names]
    return found


def _manifest(folder: Path, path: PurePosixPath) -> Manifest:
    text = read_document(folder / path)[1]
    try:
        return Manifest(path, *_facts(json.loads(text), path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = "a manifest with reportKeys, dataFiles or blobs"
        _refuse(folder / path, expected, f"{type(error).__name__}: {error}"[:200])


def _facts(told: Any, path: PurePosixPath) -> tuple[str, str, str, tuple[str, ...]]:  # noqa: ANN401 - JSON
    """Export, period, time and keys of a manifest of any of the three kinds."""
    run, export = told.get("runInfo", {}), told.get("reportName") or path.name
    if "blobs" in told:
        keys = [blob["blobName"] for blob in told["blobs"]]
        export = told.get("exportConfig", {}).get("exportName", "")
    else:
        keys = told["dataFiles"] if "dataFiles" in told else told["reportKeys"]
    if not keys or not all(isinstance(key, str) for key in keys):
        raise TypeError
    period, made = (_in(path, words) or _in(keys[0], words) for words in (PERIOD, MADE))
    if "startDate" in run:
        period = date.fromisoformat(run["startDate"][:10]).isoformat()
    return str(export), period, str(run.get("submittedTime") or made), tuple(keys)


def _in(path: object, words: re.Pattern[str]) -> str:
    """What a path says of a period or time; nothing if it does not."""
    found = words.search(str(path))
    return found.group() if found else ""


def _newest(folder: Path, manifests: Sequence[Manifest]) -> list[Manifest]:
    """The manifest of each period that counts: made last or, where no time is told, standing above the others."""
    exports = sorted({manifest.export for manifest in manifests})
    if len(exports) > 1:
        todo = "Import each one separately: two exports may hold the same charges."
        _refuse(folder, "parts of one export", examples(exports), todo)
    newest = []
    for period in sorted({manifest.period for manifest in manifests}):
        same = [manifest for manifest in manifests if manifest.period == period]
        order = sorted(same, key=_age)
        if len({each.keys for each in order[-2:] if _age(each) == _age(order[-1])}) > 1:
            _refuse_refreshes(folder, period, [str(manifest.path) for manifest in same])
        newest.append(order[-1])
    return newest


def _age(manifest: Manifest) -> tuple[str, int]:
    return manifest.made, -len(manifest.path.parts)


def _parts_of(folder: Path, manifest: Manifest, parts: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """The files that a manifest lists, by their keys: the same path from the period on, or beside the manifest."""
    found, missing = [], []
    for key in map(PurePosixPath, manifest.keys):
        same = [part for part in parts if _ends_alike(part, key) or part == manifest.path.with_name(key.name)]
        if len(same) == 1:
            found += same
        else:
            missing.append(str(key))
    if missing:
        expected = "each part that it lists in the folder once"
        _refuse(folder / manifest.path, expected, f"not so for {examples(missing)}")
    return found


def _ends_alike(part: PurePosixPath, key: PurePosixPath) -> bool:
    """True if a key ends with the path of a part; folders above that of the period may be others."""
    named = PERIOD.search(str(part))
    end = PurePosixPath(str(part)[named.start() :]).parts if named else part.parts
    return key.parts[-len(end) :] == end


def _require_one_refresh(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    """Without a manifest, parts of a period in two folders may be two refreshes of it."""
    places: dict[str, set[str]] = {}
    for part in parts:
        places.setdefault(_in(part, PERIOD), set()).add(str(part.parent))
    for period, folders in sorted(places.items()):
        if period and len(folders) > 1:
            _refuse_refreshes(folder, period, sorted(folders))


def _require_one_kind(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    kinds = {"Parquet" if part.name.lower().endswith(".parquet") else "CSV": part.name for part in parts}
    if len(kinds) > 1:
        todo = "Give the files of one kind: the others may hold the same charges."
        got = "; ".join(f"{kind}: {name}" for kind, name in sorted(kinds.items()))
        _refuse(folder, "parts of one kind", got, todo)


def _refuse_refreshes(folder: Path, period: str, got: Sequence[str]) -> None:
    expected = f"one refresh of {period}, or a manifest that names the newest"
    _refuse(folder, expected, examples(got), "Give the folder of the newest one.")


def _refuse(where: str | Path, expected: str, got: str, todo: str = REMEDY) -> NoReturn:
    raise TraceFormatError(str(where), expected, got, todo)


CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
"""Values of ``ChargeCategory`` in FOCUS 1.0 to 1.2."""

BILL = Dialect(
    missing=frozenset({"NULL", "null"}),
    hint="Write the bill again, or name its source (gpuplanner ingest --list).",
    tables=True,
)

COSTS = ("BilledCost", "EffectiveCost", "ListCost")


NOBODY = re.compile(r"(?!)")
"""Matches no name: every tag is called as its users called it."""


UNKNOWN_GPUS = "lines about GPUs of an unknown instance type"
UNKNOWN_EFFECT = "their GPU-hours are not counted: gpuplanner describe lists their types"
OPTIONAL = ("x_InstanceType", "PricingUnit", "ChargeDescription", "CommitmentDiscountStatus")
BILLED_FROM, BILLED_UNTIL = pl.col("BillingPeriodStart"), pl.col("BillingPeriodEnd")
CHECKS = (
    source_check("bill: equal rows", ~pl.col("raw").is_first_distinct()),
    source_check(
        "bill: other period",
        ~pl.col("ChargePeriodStart").is_between(BILLED_FROM, BILLED_UNTIL, closed="left"),
    ),
    source_check("bill: correction", pl.col("ChargeClass") == "Correction"),
    source_check("bill: no list cost", pl.col("ListCost").is_null()),
)


def headers(files: Sequence[Path]) -> dict[Path, list[str]]:
    """Names of the columns of each file; none for an empty one."""
    return {path: header_names(line, BILL) for path in files for line in head(path)[:1]}


def assemble_bill(
    rows: Rows,
    delivery: Delivery,
    *,
    source: str,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    tag_owner: re.Pattern[str] = NOBODY,
) -> Dataset:
    """Make a reading of charge lines that have the columns of ``schemas.TABLES["charges"]``."""
    _refuse_repeated_parts(rows)
    tidy = pl.col("Tags").map_elements(lambda text: tidy_tags(text, tag_owner), return_dtype=pl.String)
    rows = rows.with_columns(tidy=tidy)
    category, charge_end = pl.col("ChargeCategory"), pl.col("ChargePeriodEnd")
    no_pairs = pl.col("tidy").is_null() & pl.col("Tags").is_not_null()
    rows = rows.reject(
        {
            f"ChargeCategory: not one of {', '.join(CATEGORIES)}": ~category.is_in(CATEGORIES),
            "currency: not three capital letters": ~pl.col("BillingCurrency").str.contains(r"^[A-Z]{3}$"),
            "billing period: its end is not after its start": BILLED_FROM >= BILLED_UNTIL,
            "charge period: it ends before it starts": charge_end < pl.col("ChargePeriodStart"),
            "Tags: not pairs of a name and a text, each name once": no_pairs,
        }
    )
    rows = rows.with_columns(Tags=pl.col("tidy"))
    # In the order of the rows: what speaks of GPUs and is of no instance type that the catalogue has.
    unknown = (category == "Usage") & looks_like_gpus() & pl.col("gpu_count").is_null()
    uncounted = ~pl.col("PricingUnit").str.contains(GPU_HOUR_UNITS).fill_null(value=False)
    absent = [pl.lit(None, pl.String).alias(name) for name in OPTIONAL if name not in rows.good.columns]
    lines = gpu_lines(rows.good.with_columns(absent))
    rows = rows.with_columns(lines.select(unknown_gpus=unknown & uncounted).to_series())
    currencies = rows.good["BillingCurrency"].unique().sort().to_list()
    several = source_check("bill: several currencies", pl.lit(len(currencies) > 1))
    unknown_gpus = Check(UNKNOWN_GPUS, "warning", UNKNOWN_EFFECT, pl.col("unknown_gpus"))
    return assemble_reading(
        rows,
        "charges",
        source=source,
        order=["BillingPeriodStart", "ChargePeriodStart"],
        what="charge",
        checks=[several, *CHECKS, *checks, unknown_gpus],
        findings=_file_findings(rows, delivery),
        totals={
            f"{cost}_{currency}": exact_text(pl.col(cost).filter(pl.col("BillingCurrency") == currency).sum())
            for currency in currencies
            for cost in COSTS
        },
        span=("ChargePeriodStart", "ChargePeriodEnd"),
        notes=notes,
    )


def exact_text(amounts: pl.Expr) -> pl.Expr:
    """Decimals as text without trailing zeros.

    Examples
    --------
    >>> pl.select(exact_text(pl.lit("1.50").cast(pl.Decimal(38, 18)))).item()
    '1.5'
    """
    return amounts.cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")


def _refuse_repeated_parts(rows: Rows) -> None:
    """Two files with the same rows would count each charge twice, however differently they are packed."""
    if len(rows.files) < 2:
        return
    rest = pl.exclude(*PLACE)
    parts = rows.good.select("file", hash=pl.struct(rest).hash()).group_by("file", maintain_order=True)
    hashes = pl.col("hash")
    looks = parts.agg(look=pl.struct(pl.len(), low=hashes.min(), high=hashes.max(), sum=hashes.sum()))
    twins = looks.group_by("look", maintain_order=True).agg("file").filter(pl.col("file").list.len() > 1)
    if twins.height:
        one, other, *_ = (rows.file_names()[file] for file in twins["file"][0])
        got = f"{one} and {other}, whose rows are the same"
        raise TraceFormatError("parts of a bill", "different rows in each", got, "Give one of them.")


def _file_findings(rows: Rows, delivery: Delivery) -> list[Finding]:
    """What the files of a bill make one know."""
    findings = []
    if older := delivery.left_out:
        findings.append(source_finding("bill: older refresh", len(older), str(older[0])))
    types = [column for file in rows.files if file.table is not None for column in file.table.schema.items()]
    zoneless = [name for name, each in types if isinstance(each, pl.Datetime) and each.time_zone is None]
    if zoneless:
        example = ", ".join(dict.fromkeys(zoneless))
        findings.append(source_finding("bill: no zone in Parquet", rows.count, example))
    return findings


def tidy_tags(text: str, owner: re.Pattern[str] = NOBODY) -> str | None:
    """One line's tags as a JSON object with sorted keys, or None where they are no pairs.

    They may be an object, or a list of objects with ``key`` and ``value``; what matches `owner` is no part of a name.

    Examples
    --------
    >>> tidy_tags('{"team": "a", "app": true}'), tidy_tags('[{"key": "team", "value": "a"}]'), tidy_tags("team=a")
    ('{"app":"true","team":"a"}', '{"team":"a"}', None)
    """
    try:
        # As tuples objects are no lists, and keep doubled names.
        told = json.loads(text, object_pairs_hook=tuple)
        pairs = told if isinstance(told, tuple) else [_pair(each) for each in told]
        tidy = {owner.sub("", name): _text(value) for name, value in pairs}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if len(tidy) < len(pairs):
        return None
    return json.dumps(tidy, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _pair(members: object) -> tuple[Any, Any]:
    known = dict(members) if isinstance(members, tuple) else {}
    return known["key"], known["value"]


def _text(value: object) -> str:
    """The text of a tag; a tag without one has the value true, or null."""
    if isinstance(value, (list, tuple)):
        raise TypeError
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
