"""Machine code that is kept: what an older source left behind is compiled anew, and never in the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOURCE = """
from typing import NamedTuple

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compiled_entry


class {name}(NamedTuple):
    values: np.ndarray


def total(state):
    return state.values.sum()


total = compiled_entry(total)
print(total({name}(np.arange(4.0))))
"""


@pytest.mark.long
def test_a_class_that_was_renamed_since_is_compiled_anew(tmp_path):
    """The index of kept code names the classes of the arguments, before it says of which source it is."""
    module = tmp_path / "kernel.py"
    compiled = []
    for name in ("Before", "Before", "Since", "Since"):
        module.write_text(SOURCE.format(name=name))
        done = subprocess.run(
            [sys.executable, "-c", "import kernel"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "6.0\n"), done.stderr
        compiled.append("compiling" in done.stderr)
    assert compiled == [True, False, True, False]
