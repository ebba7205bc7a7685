"""Common steps of all bill readers: delivered files, tags and currencies.

Providers deliver a bill as a folder of parts. Each refresh of a period repeats all of it, often next to the older ones,
so that the parts of two refreshes must never be added: manifests say which parts count [1]_ [2]_ [3]_.

References
----------
.. [1] AWS, Cost and Usage Reports user guide, "Viewing report files": ``yyyymmdd-yyyymmdd/assemblyId/``, and a
   manifest with ``assemblyId`` and ``reportKeys`` in both folders; the one above is that of the newest assembly.
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
from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.ingest.bills.bill_summary import COST_COLUMNS, GPU_HOUR_UNIT_PATTERN, add_gpu_hours, mentions_gpus
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import POSITION_COLUMNS, Rows
from gpuplanner.ingest.quality_report import Check, Finding, source_check, source_finding
from gpuplanner.ingest.source_fields import Dialect, parse_header
from gpuplanner.ingest.table_assembly import assemble_table
from gpuplanner.ingest.text_files import read_document, read_head

MANIFEST_ENDING = "manifest.json"
"""Ending of the file name of every manifest of a delivered bill, in small letters."""

BILL_PART_SUFFIX_PATTERN = re.compile(r"\.(?:csv|parquet|avro|orc)(?:\.(?:gz|zip|zst|bz2|xz))?$", re.IGNORECASE)
"""Ending of the name of a part (file) of a delivered bill; a part in an unsupported format is an error and not skipped.
"""

PERIOD_PATTERN = re.compile(r"(?<![^/])(?:BILLING_PERIOD=\d{4}-\d{2}|\d{8}-\d{8}|year=\d{4}/month=\d{1,2})(?=/)")
"""Folders in the path of a delivered bill that name its billing period, such as ``BILLING_PERIOD=2026-01``."""

CREATION_TIME_PATTERN = re.compile(r"\d{4}-?\d{2}-?\d{2}T\d{2}:?\d{2}:?\d{2}[.\d]*Z")
"""Creation time in the folder name of a refresh of a bill, such as ``20260131T120000Z``."""

INCOMPLETE_DELIVERY_ADVICE = "Give the folder as it was delivered, or the files themselves."
"""Advice of the error for an incomplete delivery."""


@dataclass(frozen=True)
class BillDelivery:
    """Files of delivered bills that are read, and those that newer refreshes replace.

    - ``files``: Files to read, in the order of the folders, and by name within one.
    - ``left_out``: Parts in the folders that no current manifest lists: older refreshes.
    """

    files: tuple[Path, ...]
    left_out: tuple[Path, ...]


@dataclass(frozen=True)
class BillManifest:
    """A manifest of a delivered bill: the JSON file that lists its parts.

    - ``path``: Path of the manifest below the delivered folder.
    - ``export``: Name of the export, as its owner set it up at the provider.
    - ``period``: Billing period, as its folder or the manifest names it; "" if unknown.
    - ``made``: Time of creation, ISO 8601 text; "" if unknown.
    - ``keys``: Paths of the parts in the object store of the provider.
    """

    path: PurePosixPath
    export: str
    period: str
    made: str
    keys: tuple[str, ...]


def select_delivered_files(paths: Iterable[str | Path]) -> BillDelivery:
    """Select the files to read: given files, and the current parts in each given folder.

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
    ...     [path.read_text() for path in select_delivered_files([folder]).files]
    ['new']
    """
    files: list[Path] = []
    left_out: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        parts, manifests = _list_delivery(path)
        newest = _select_newest(path, manifests)
        chosen = [part for manifest in newest for part in _match_manifest_parts(path, manifest, parts)]
        if not manifests:
            _require_one_refresh(path, parts)
            chosen = parts
        _require_one_kind(path, chosen)
        files += [path / part for part in dict.fromkeys(chosen)]
        left_out += [path / part for part in parts if part not in set(chosen)]
    return BillDelivery(tuple(files), tuple(left_out))


def _list_delivery(folder: Path) -> tuple[list[PurePosixPath], list[BillManifest]]:
    """List the parts and manifests of the bills in a folder, by paths below it; hidden files are skipped."""
    hidden = (".", "_")
    inside = sorted(path for path in _list_files(folder) if not any(name.startswith(hidden) for name in path.parts))
    parts = [path for path in inside if BILL_PART_SUFFIX_PATTERN.search(path.name)]
    if not parts:
        got = examples([str(path) for path in inside]) if inside else "a folder with nothing in it"
        _reject_delivery(folder, "parts of a bill, as .csv, .csv.gz or .parquet", got)
    return parts, [_read_manifest(folder, path) for path in inside if path.name.lower().endswith(MANIFEST_ENDING)]


def _list_files(folder: Path) -> list[PurePosixPath]:
    """List every file in a folder; unreadable folders and links are errors, since parts would be missed."""

    def raise_unreadable(error: OSError) -> None:
        """Raise the error for a folder that cannot be listed."""
        _reject_delivery(error.filename, "a readable folder", error.strerror or str(error))

    files = []
    for folder_path, folders, names in os.walk(folder, onerror=raise_unreadable):
        links = [str(Path(folder_path, name)) for name in folders if Path(folder_path, name).is_symlink()]
        if links:
            _reject_delivery(links[0], "a folder of the delivery", "a link to a folder")
        files += [PurePosixPath(Path(folder_path, name).relative_to(folder).as_posix()) for name in names]
    return files


def _read_manifest(folder: Path, path: PurePosixPath) -> BillManifest:
    """Read one manifest of a delivered bill."""
    text = read_document(folder / path)[1]
    try:
        return BillManifest(path, *_manifest_facts(json.loads(text), path))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        expected = "a manifest with reportKeys, dataFiles or blobs"
        _reject_delivery(folder / path, expected, f"{type(error).__name__}: {error}"[:200])


def _manifest_facts(content: Any, path: PurePosixPath) -> tuple[str, str, str, tuple[str, ...]]:  # noqa: ANN401 - JSON
    """Return export, period, creation time and keys (:class:`BillManifest`) of a parsed manifest of AWS or Azure."""
    run, export = content.get("runInfo", {}), content.get("reportName") or path.name
    if "blobs" in content:
        keys = [blob["blobName"] for blob in content["blobs"]]
        export = content.get("exportConfig", {}).get("exportName", "")
    else:
        keys = content["dataFiles"] if "dataFiles" in content else content["reportKeys"]
    if not keys or not all(isinstance(key, str) for key in keys):
        raise TypeError
    period, created = (
        _search_path(path, words) or _search_path(keys[0], words) for words in (PERIOD_PATTERN, CREATION_TIME_PATTERN)
    )
    if "startDate" in run:
        period = date.fromisoformat(run["startDate"][:10]).isoformat()
    return str(export), period, str(run.get("submittedTime") or created), tuple(keys)


def _search_path(path: object, pattern: re.Pattern[str]) -> str:
    """Return the first match of a pattern in a path; "" without a match."""
    match = pattern.search(str(path))
    return match.group() if match else ""


def _select_newest(folder: Path, manifests: Sequence[BillManifest]) -> list[BillManifest]:
    """Select the current manifest of each period: created last or, without a time, in the topmost folder."""
    exports = sorted({manifest.export for manifest in manifests})
    if len(exports) > 1:
        todo = "Import each one separately: two exports may hold the same charges."
        _reject_delivery(folder, "parts of one export", examples(exports), todo)
    newest_manifests = []
    for period in sorted({manifest.period for manifest in manifests}):
        of_period = [manifest for manifest in manifests if manifest.period == period]
        by_age = sorted(of_period, key=_manifest_age)
        if len({manifest.keys for manifest in by_age[-2:] if _manifest_age(manifest) == _manifest_age(by_age[-1])}) > 1:
            _reject_refreshes(folder, period, [str(manifest.path) for manifest in of_period])
        newest_manifests.append(by_age[-1])
    return newest_manifests


def _manifest_age(manifest: BillManifest) -> tuple[str, int]:
    """Sort key of manifests, oldest first: creation time, then depth of the folder, since the newest is topmost."""
    return manifest.made, -len(manifest.path.parts)


def _match_manifest_parts(folder: Path, manifest: BillManifest, parts: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """Find the files that a manifest lists: the same path from the period on, or next to the manifest."""
    matched, missing = [], []
    for key in map(PurePosixPath, manifest.keys):
        candidates = [
            part for part in parts if _has_same_ending(part, key) or part == manifest.path.with_name(key.name)
        ]
        if len(candidates) == 1:
            matched += candidates
        else:
            missing.append(str(key))
    if missing:
        expected = "each part that it lists in the folder once"
        _reject_delivery(folder / manifest.path, expected, f"not so for {examples(missing)}")
    return matched


def _has_same_ending(part: PurePosixPath, key: PurePosixPath) -> bool:
    """Whether a manifest's key of a part ends with the path of a file; folders above the period may differ."""
    period_match = PERIOD_PATTERN.search(str(part))
    part_ending = PurePosixPath(str(part)[period_match.start() :]).parts if period_match else part.parts
    return key.parts[-len(part_ending) :] == part_ending


def _require_one_refresh(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    """Refuse a folder without manifest that has parts of a period in two folders, which may be two refreshes."""
    places: dict[str, set[str]] = {}
    for part in parts:
        places.setdefault(_search_path(part, PERIOD_PATTERN), set()).add(str(part.parent))
    for period, folders in sorted(places.items()):
        if period and len(folders) > 1:
            _reject_refreshes(folder, period, sorted(folders))


def _require_one_kind(folder: Path, parts: Sequence[PurePosixPath]) -> None:
    """Refuse a folder with parts in both CSV and Parquet."""
    kinds = {"Parquet" if part.name.lower().endswith(".parquet") else "CSV": part.name for part in parts}
    if len(kinds) > 1:
        todo = "Give the files of one kind: the others may hold the same charges."
        got = "; ".join(f"{kind}: {name}" for kind, name in sorted(kinds.items()))
        _reject_delivery(folder, "parts of one kind", got, todo)


def _reject_refreshes(folder: Path, period: str, refreshes: Sequence[str]) -> None:
    """Raise the error for several refreshes of a billing period; `refreshes` are their paths below the folder."""
    expected = f"one refresh of {period}, or a manifest that names the newest"
    _reject_delivery(folder, expected, examples(refreshes), "Give the folder of the newest one.")


def _reject_delivery(location: str | Path, expected: str, got: str, todo: str = INCOMPLETE_DELIVERY_ADVICE) -> NoReturn:
    """Raise a TraceFormatError about the delivered files of a bill.

    Parameters
    ----------
    location : str or Path
        Folder or file.
    expected, got, todo : str
        What the message names as expected and as found, and what the user can do.
    """
    raise TraceFormatError(str(location), expected, got, todo)


FOCUS_CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
"""Values of ``ChargeCategory`` in FOCUS 1.0 to 1.2."""

BILL_DIALECT = Dialect(
    missing=frozenset({"NULL", "null"}),
    hint="Write the bill again, or name its source (gpuplanner ingest --list).",
    tables=True,
)
"""How the lines of CSV bills are split into fields."""

MATCH_NOTHING_PATTERN = re.compile(r"(?!)")
"""Pattern that matches nothing: the prefix to remove from tag names where a provider adds none."""


OPTIONAL_BILL_COLUMNS = ("x_InstanceType", "PricingUnit", "ChargeDescription", "CommitmentDiscountStatus")
"""Columns of the table of charges that are null where a bill lacks them."""
BILLED_FROM, BILLED_UNTIL = pl.col("BillingPeriodStart"), pl.col("BillingPeriodEnd")
"""Expressions for the first instant of a line's billing period and the first instant after it."""
BILL_CHECKS = (
    source_check("bill: equal rows", ~pl.col("raw").is_first_distinct()),
    source_check(
        "bill: other period", ~pl.col("ChargePeriodStart").is_between(BILLED_FROM, BILLED_UNTIL, closed="left")
    ),
    source_check("bill: correction", pl.col("ChargeClass") == "Correction"),
    source_check("bill: no list cost", pl.col("ListCost").is_null()),
)
"""Checks of the quality report for every bill."""


def read_headers(files: Sequence[Path]) -> dict[Path, list[str]]:
    """Read the column names of each file; an empty file is left out."""
    return {path: parse_header(line, BILL_DIALECT) for path in files for line in read_head(path)[:1]}


def assemble_bill(
    rows: Rows,
    delivery: BillDelivery,
    *,
    source: str,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    tag_owner: re.Pattern[str] = MATCH_NOTHING_PATTERN,
) -> Dataset:
    """Build the dataset of charge lines that have the columns of ``schemas.TABLES["charges"]``.

    Parameters
    ----------
    rows : Rows
        Charge lines.
    delivery : BillDelivery
        Files that were read and left out.
    source : str
        Name of the source.
    checks : sequence of Check
        Checks of the reader.
    notes : sequence of str
        Remarks for the provenance.
    tag_owner : re.Pattern
        Prefix of tag names to remove.

    Returns
    -------
    Dataset
        Table ``charges``.
    """
    _reject_repeated_parts(rows)
    normalised_tags = pl.col("Tags").map_elements(lambda text: normalise_tags(text, tag_owner), return_dtype=pl.String)
    rows = rows.with_columns(tidy=normalised_tags)
    category, charge_end = pl.col("ChargeCategory"), pl.col("ChargePeriodEnd")
    is_no_pairs = pl.col("tidy").is_null() & pl.col("Tags").is_not_null()
    rows = rows.reject(
        {
            f"ChargeCategory: not one of {', '.join(FOCUS_CATEGORIES)}": ~category.is_in(FOCUS_CATEGORIES),
            "currency: not three capital letters": ~pl.col("BillingCurrency").str.contains(r"^[A-Z]{3}$"),
            "billing period: its end is not after its start": BILLED_FROM >= BILLED_UNTIL,
            "charge period: it ends before it starts": charge_end < pl.col("ChargePeriodStart"),
            "Tags: not pairs of a name and a text, each name once": is_no_pairs,
        }
    )
    rows = rows.with_columns(Tags=pl.col("tidy"))
    # In the order of the rows: what speaks of GPUs and is of no instance type that the catalogue has.
    unknown = (category == "Usage") & mentions_gpus() & pl.col("gpu_count").is_null()
    uncounted = ~pl.col("PricingUnit").str.contains(GPU_HOUR_UNIT_PATTERN).fill_null(value=False)
    lines = add_gpu_hours(add_absent_columns(rows.good, dict.fromkeys(OPTIONAL_BILL_COLUMNS, pl.String())))
    rows = rows.with_columns(lines.select(unknown_gpus=unknown & uncounted).to_series())
    currencies = rows.good["BillingCurrency"].unique().sort().to_list()
    currency_check = source_check("bill: several currencies", pl.lit(len(currencies) > 1))
    unknown_gpus = source_check("bill: unknown instance type", pl.col("unknown_gpus"))
    return assemble_table(
        rows,
        "charges",
        source=source,
        sort_columns=["BillingPeriodStart", "ChargePeriodStart"],
        row_word="charge",
        checks=[currency_check, *BILL_CHECKS, *checks, unknown_gpus],
        findings=_delivery_findings(rows, delivery),
        totals={
            f"{cost}_{currency}": exact_text(pl.col(cost).filter(pl.col("BillingCurrency") == currency).sum())
            for currency in currencies
            for cost in COST_COLUMNS
        },
        span_columns=("ChargePeriodStart", "ChargePeriodEnd"),
        notes=notes,
    )


def exact_text(amounts: pl.Expr) -> pl.Expr:
    """Expression that formats decimals as text without trailing zeros.

    Examples
    --------
    >>> pl.select(exact_text(pl.lit("1.50").cast(pl.Decimal(38, 18)))).item()
    '1.5'
    """
    return amounts.cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")


def _reject_repeated_parts(rows: Rows) -> None:
    """Refuse two files with the same rows, which would count each charge twice, in whatever format."""
    if len(rows.files) < 2:
        return
    value_columns = pl.exclude(*POSITION_COLUMNS)
    rows_by_file = rows.good.select("file", hash=pl.struct(value_columns).hash()).group_by("file", maintain_order=True)
    hashes = pl.col("hash")
    fingerprints = rows_by_file.agg(look=pl.struct(pl.len(), low=hashes.min(), high=hashes.max(), sum=hashes.sum()))
    equal_files = fingerprints.group_by("look", maintain_order=True).agg("file").filter(pl.col("file").list.len() > 1)
    if equal_files.height:
        first_file, second_file, *_ = (rows.file_names()[file] for file in equal_files["file"][0])
        got = f"{first_file} and {second_file}, whose rows are the same"
        raise TraceFormatError("parts of a bill", "different rows in each", got, "Give one of them.")


def _delivery_findings(rows: Rows, delivery: BillDelivery) -> list[Finding]:
    """Report older refreshes of a bill, and Parquet times without a zone, as findings."""
    findings = []
    if older := delivery.left_out:
        findings.append(source_finding("bill: older refresh", len(older), str(older[0])))
    types = [column for file in rows.files if file.table is not None for column in file.table.schema.items()]
    zoneless = [name for name, dtype in types if isinstance(dtype, pl.Datetime) and dtype.time_zone is None]
    if zoneless:
        example = ", ".join(dict.fromkeys(zoneless))
        findings.append(source_finding("bill: no zone in Parquet", rows.count, example))
    return findings


def normalise_tags(text: str, owner: re.Pattern[str] = MATCH_NOTHING_PATTERN) -> str | None:
    """Normalise the tags of a line to a JSON object with sorted keys; None where they are no pairs.

    They may be an object, or a list of objects with ``key`` and ``value``; the prefix `owner` is removed from names.

    Examples
    --------
    >>> normalise_tags('{"team": "a", "app": true}'), normalise_tags('[{"key": "team", "value": "a"}]')
    ('{"app":"true","team":"a"}', '{"team":"a"}')
    >>> normalise_tags("team=a") is None
    True
    """
    try:
        # As tuples objects are no lists, and keep doubled names.
        content = json.loads(text, object_pairs_hook=tuple)
        pairs = content if isinstance(content, tuple) else [_key_value_pair(member) for member in content]
        tags = {owner.sub("", name): _tag_value_text(value) for name, value in pairs}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if len(tags) < len(pairs):
        return None
    return json.dumps(tags, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _key_value_pair(members: object) -> tuple[Any, Any]:
    """Return key and value of a tag that is given as an object with ``key`` and ``value``."""
    member_values = dict(members) if isinstance(members, tuple) else {}
    return member_values["key"], member_values["value"]


def _tag_value_text(value: object) -> str:
    """Format the value of a tag as text; a tag without a value has the value true, or null."""
    if isinstance(value, (list, tuple)):
        raise TypeError
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
