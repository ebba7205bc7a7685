"""Fields of a file of sacct that has no header."""

from __future__ import annotations

from gpuplanner.ingest.slurm.accounting_fields import detect_fields


def test_a_file_without_header_needs_more_than_half_of_its_lines_to_fit():
    fields = "7|7|u|g|COMPLETED|2025-01-01T00:00:00|2025-01-01T01:00:00" + "|" * 15
    line = f"{fields}|2025-01-01T00:00:00" + "|" * 9
    names = detect_fields([line])
    assert names is not None
    assert (names[4], names[22]) == ("State", "Submit")
    assert detect_fields([line, "no line of ours"]) is None
    assert detect_fields([line, line, "no line of ours"]) == names
    assert detect_fields([]) is None
