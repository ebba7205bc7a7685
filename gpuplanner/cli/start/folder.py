"""The folder that ``start`` fills: data beside, and a scenario that finds them from wherever it is read."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuplanner.files.manifest import MANIFEST, Mark
from gpuplanner.files.folder import replaced_directory
from gpuplanner.files.manifest import Written, read_manifest, state_manifest
from gpuplanner.files.text import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpuplanner.scenario import Scenario
    from gpuplanner.study.decision.record import Comparison
    from gpuplanner.study.past.pools import FleetPools

NAME = "scenario.yaml"
BEGUN = Mark(MANIFEST, "gpuplanner report 1", names=("index.html", NAME))
"""The kind of folder that a report is, so that the one takes the place of the other; told without its libraries."""


def scenario_into(asked: Scenario, place: Path, found: Comparison) -> None:
    """Write scenario and pack alone: an older page would show another decision, and goes."""
    from gpuplanner.study.handover.decision_pack import pack_into

    with replaced_directory(place, mark=BEGUN) as folder:
        pack_into(asked, found, folder)
        (folder / NAME).write_text(_from(asked, place).to_yaml(), encoding="utf-8")


def page_into(asked: Scenario, place: Path) -> None:
    """Write the page with all that belongs to it."""
    from gpuplanner.report.render import write_report

    write_report(asked, place)
    told = read_manifest(place)
    if (
        told is not None
    ):  # the report writes the scenario as it was asked, from the folder that it was asked in
        (place / NAME).write_text(_from(asked, place).to_yaml(), encoding="utf-8")
        file = Written((place / NAME).stat().st_size, sha256(place / NAME))
        state_manifest(place, BEGUN, {**told[1], NAME: file})


def pools_into(
    pools: FleetPools,
    scenarios: Sequence[Scenario],
    place: Path,
    *,
    title: str,
    found: Mapping[str, Comparison] | None = None,
) -> None:
    """Write the page of several pools with a page of each; with what was found, the files of each alone.

    The scenario of a fleet in one dataset stands beside; several clusters are given again as they were.
    """
    from gpuplanner.report.pools import FOLDER, folder_of, write_fleet_report
    from gpuplanner.study.handover.decision_pack import pack_into

    if found is None:
        write_fleet_report(pools, title, place)
    else:
        with replaced_directory(place, mark=BEGUN) as folder:
            for name, own in pools.pools.items():
                (folder / FOLDER / folder_of(name)).mkdir(parents=True)
                pack_into(own, found[name], folder / FOLDER / folder_of(name))
    if len(scenarios) > 1:
        return
    told = read_manifest(place)
    (place / NAME).write_text(_from(scenarios[0], place).to_yaml(), encoding="utf-8")
    if told is not None:
        file = Written((place / NAME).stat().st_size, sha256(place / NAME))
        state_manifest(place, BEGUN, {**told[1], NAME: file})


def _from(asked: Scenario, place: Path) -> Scenario:
    """The scenario with its files as they are found from its folder."""
    own = asked if asked.data == "sample" else replace(asked, data=os.path.relpath(asked.data, place))
    from gpuplanner.scenario import FILES

    named = {name: file for name in FILES if (file := getattr(own, name)) is not None}
    return own.but(**{name: os.path.relpath(file, place) for name, file in named.items()})
