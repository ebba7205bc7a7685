"""Files that nobody should trust to rows: every line is a row, or is rejected with number, text and all its faults.

No CSV reader of a library gives that account, which ``tests/inbox/public/test_public_laws.py`` demands of every
source: after a quotation mark that is not closed, PyArrow's handler of bad rows gets the good lines behind it as one
bad row, and polars drops them; a word among numbers ends PyArrow's whole read, and is null in polars, without a
reject. So lines are cut here, and polars' CSV parser reads those columns that hold nothing but numbers.
"""
