"""False and missed alarms of ``gpuplanner check`` on generated fleets with a known shift of demand.

Writes the table of ``docs/results/recurring.md``:

    python docs/make_check.py FOLDER

Fleets are written into the folder and removed again. Five CPU minutes.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gpuplanner.core.scenario import Scenario  # noqa: E402
from gpuplanner.decision.fleet_checks_and_alerts import FORECAST_ACCURACY, NEXT_DAYS, PAST_WAITS, RUNWAY, check_capacity  # noqa: E402
from tests.decision.recurring.small_fleets import SmallFleet  # noqa: E402 - of the checkout

SEEDS = 40
FACTORS = (1.0, 1.25, 1.5, 2.0, 2.5)
CHECKS = (PAST_WAITS, NEXT_DAYS, FORECAST_ACCURACY, RUNWAY)
FLEETS = {
    "two nodes of eight, eight weeks": SmallFleet(0, load=0.35),
    "one node of eight, jobs of one and two GPUs": SmallFleet(0, nodes=1, load=0.3, sizes={1: 0.8, 2: 0.2}),
    "two nodes of eight, 20 weeks": SmallFleet(0, load=0.35, weeks=20),
    "weekly load varies by 20 %": SmallFleet(0, load=0.35, weekly_spread=0.2),
    "long and wide jobs": SmallFleet(0, load=0.3, run_h=8.0, sizes={1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}),
}
BEGIN, END = "<!-- check: made by make_check.py -->\n", "<!-- check ends -->"


def row(name: str, fleet: SmallFleet, factor: float, folder: Path) -> str:
    """One line: how many of the seeds failed, in all and by check.

    Without a shift an alarm is false where a check failed that looks ahead or compares; that jobs of last week were
    late is read off the record, and was so.
    """
    failed = dict.fromkeys(("any", "was so", *CHECKS), 0)
    for seed in range(SEEDS):
        planted = replace(fleet, seed=seed, factor=factor, from_day=7.0 * (fleet.weeks - 1))
        place = planted.write(folder / f"{seed}")
        found = check_capacity(Scenario(data=str(place)))
        shutil.rmtree(place)
        failed["any"] += not found.has_passed
        failed["was so"] += [one.name for one in found.failed_checks] == [PAST_WAITS]
        for one in found.failed_checks:
            failed[one.name] += 1
    any_, was_so, *parts = failed.values()
    words = f"{any_ - was_so} false, {was_so} justified" if factor == 1.0 else f"{any_} ({SEEDS - any_} missed)"
    asked = "as before" if factor == 1.0 else f"{factor:g} times"
    return f"| {name} | {asked} | {words} | " + " | ".join(map(str, parts)) + " |"


def main(folder: Path) -> None:
    """Count, and write the table."""
    lines = [f"| fleet | arrivals | any check | {' | '.join(CHECKS)} |", "|---" * (3 + len(CHECKS)) + "|"]
    for name, fleet in FLEETS.items():
        for factor in FACTORS:
            lines.append(row(name, fleet, factor, folder))
            sys.stderr.write(lines[-1] + "\n")
    page = HERE / "results" / "recurring.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
