"""Programs and modules of ``benchmarks``, imported as they run: from their own folders."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "claims"), str(BENCHMARKS / "planted_clusters"), str(BENCHMARKS)]
