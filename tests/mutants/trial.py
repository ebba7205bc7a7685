"""Run the tests of a room in a copy of the checkout, with and without a mutant."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.mutants.draw import Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("gpuplanner", "tests", "pyproject.toml")
"""What a run may write into; everything else in the checkout is linked."""
LEAST_CPU_S = 30
"""Limit of work where the tests are quick [s of processor]."""
TIMES_AS_LONG = 4
"""Limit of work: so many times what the tests take without a mutant."""
MEMORY_BYTES = 16 << 30
"""More address space than any test of the core asks for: a mutant may collect for ever."""
QUICK = "not long and not lint and not slow and not browser and not notebook and not prometheus"

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def copies_of_checkout(number: int) -> Iterator[queue.Queue[Path]]:
    """Copies of the checkout, one for each worker. Times of files stay, so that what was compiled stays valid."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for place in range(number):
            copy = Path(folder) / str(place)
            copy.mkdir()
            for each in ROOT.iterdir():
                if each.name in COPIED:
                    (shutil.copytree if each.is_dir() else shutil.copy2)(each, copy / each.name)
                elif each.name not in ("build", ".hypothesis") and not each.name.startswith(".git"):
                    (copy / each.name).symlink_to(each)
            where = [sys.executable, "-c", "import gpuplanner; print(gpuplanner.__file__)"]
            shown = subprocess.run(
                where, cwd=copy, env=_settings(copy), text=True, capture_output=True, check=True
            )
            if not Path(shown.stdout).is_relative_to(copy):
                raise RuntimeError(f"tests would import {shown.stdout.strip()}, not the copy")
            copies.put(copy)
        yield copies


def unmutated(copies: queue.Queue[Path], file: str, tests: list[str]) -> float:
    """Work of tests where a module differs by a comment [s of processor].

    With a mutant it is the same: some compiled functions are compiled anew when their room changes.

    Raises
    ------
    RuntimeError
        If the tests fail.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, output = _with(copies, file, lambda text: f"{text}# No mutant.\n", tests, cpu_s=3600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise RuntimeError(f"these tests fail without a mutant: {tests}\n{output[-3000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tried(copies: queue.Queue[Path], tests: list[str], work_s: float, mutant: Mutant) -> str:
    """Run the tests with one mutant, and say how it ended."""
    limit_s = max(LEAST_CPU_S, round(TIMES_AS_LONG * work_s))
    code, _ = _with(copies, mutant.file, lambda _: mutant.text, tests, cpu_s=limit_s)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "ran on"
    return "killed" if code else "survived"


def _with(
    copies: queue.Queue[Path], file: str, change: Callable[[str], str], tests: list[str], *, cpu_s: int
) -> tuple[int, str]:
    """Run tests in a free copy while a module has another text."""
    copy = copies.get()
    path = copy / file
    source, times = path.read_bytes(), path.stat()
    try:
        path.write_text(change(source.decode()))
        # No two texts have one time, by which Python knows what it has compiled.
        os.utime(path, times=(times.st_atime, int(times.st_mtime) + next(_NUMBERS)))
        return _tests(copy, tests, cpu_s=cpu_s)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        copies.put(copy)


def _tests(copy: Path, tests: list[str], *, cpu_s: int) -> tuple[int, str]:
    """Run tests in a copy, up to the first that fails: exit code and output.

    The limit is one of work, so that a busy machine changes nothing; the clock is a fuse for what waits for ever.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--doctest-modules",
        "-p",
        "no:cacheprovider",
        "-m",
        QUICK,
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *tests], cwd=copy, env=_settings(copy), stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            code = process.wait(timeout=20 * cpu_s)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def _settings(copy: Path) -> dict[str, str]:
    data = ROOT / os.environ.get("GPUPLANNER_DATA", "../shared/data")
    ours = {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "unshrunk", "GPUPLANNER_DATA": str(data.resolve())}
    return os.environ | ours
