"""Bills that can be read."""

from __future__ import annotations

from gpuplanner.inbox.bills.cur import COLUMN_MAP as CUR_COLUMNS
from gpuplanner.inbox.bills.cur import cur2_name, read_cur
from gpuplanner.inbox.bills.focus import COLUMN_MAP as FOCUS_COLUMNS
from gpuplanner.inbox.bills.focus import read_focus
from gpuplanner.inbox.core.source import Source, columns_of, header_has, together

_CUR = [name for name, field in CUR_COLUMNS.items() if not field.optional]
_SNIFFS = header_has(_CUR), header_has(map(cur2_name, _CUR))

BILLS = (
    Source(
        "focus",
        "bill in FOCUS 1.0, 1.1 or 1.2 (CSV or Parquet, or a folder of parts)",
        read_focus,
        columns_of(FOCUS_COLUMNS),
        whole_files=together,
    ),
    Source(
        "cur",
        "AWS Cost and Usage Report, legacy or 2.0 (CSV or Parquet, or a folder of parts)",
        read_cur,
        lambda lines: any(sniff(lines) for sniff in _SNIFFS),
        whole_files=together,
    ),
)
