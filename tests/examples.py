"""How many examples a property test draws."""

from __future__ import annotations

import os

QUICK_EXAMPLES = 15


def examples(full: int) -> int:
    """Return the full number of examples in the profile ``explore``, at most fifteen otherwise."""
    return full if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else min(full, QUICK_EXAMPLES)
