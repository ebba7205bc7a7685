"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Folder with the public traces; tests that need it are skipped, with a reason, where it is absent."""
    folder = Path(os.environ.get("GPUPLANNER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"public traces not found in {folder}; set GPUPLANNER_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the checkout."""
    return ROOT
