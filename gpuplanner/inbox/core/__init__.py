"""What every family of sources shares: text to rows, rows to tables, faults to findings, tables to a folder."""
