"""The part of ``plan`` that sizes inference services instead of planning a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplanner.cli.app import Exit, say
from gpuplanner.cli.show import show, show_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplanner.cli.options import Given

Services = Annotated[
    Path | None,
    typer.Option("--services", metavar="DIR", help="Size services: folder of measured profiles, a CSV each."),
]
Rates = Annotated[
    Path | None,
    typer.Option("--rates", metavar="CSV", help="Requests per second: a row a scenario, a column a service."),
]
Latencies = Annotated[
    Path | None, typer.Option("--latencies", metavar="CSV", help="Latency limits in ms, laid out as --rates.")
]
Row = Annotated[
    int | None, typer.Option("--row", min=1, help="Row of --rates and --latencies, counted from 1.")
]
LatencyShare = Annotated[
    float | None,
    typer.Option(
        "--latency-share", help="Share of a latency limit that a batch may take; 0.45 if not given."
    ),
]


MaybeScenario = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario YAML file, a folder written by 'gpuplanner ingest', or 'sample'; none with --services.",
    ),
]


@dataclass(frozen=True)
class ServiceFiles:
    """Services to size: their profiles, and the row of rates and latency limits."""

    services: Path
    rates: Path
    latencies: Path
    row: int
    latency_share: float | None


def service_files(
    scenario: str | None,
    assignments: Sequence[str],
    services: Path | None,
    rates: Path | None,
    latencies: Path | None,
    row: int | None,
    latency_share: float | None,
) -> ServiceFiles | None:
    """Services to size, or None if the scenario is to be planned.

    Examples
    --------
    >>> service_files("sample", (), None, None, None, None, None) is None
    True
    """
    alone = all(value is None for value in (rates, latencies, row, latency_share))
    if services is None and scenario is not None and alone:
        return None
    if services is None:
        text = "give a SCENARIO, or --services with --rates and --latencies"
        if scenario is not None:
            text = "--rates, --latencies, --row and --latency-share belong to --services"
    elif scenario is not None or assignments:
        text = "--services stands alone: no SCENARIO and no --set beside it"
    elif rates is None or latencies is None:
        text = "--services needs --rates and --latencies"
    else:
        return ServiceFiles(services, rates, latencies, row or 1, latency_share)
    raise typer.BadParameter(text)


def size_services(files: ServiceFiles, given: Given, *, out: Path | None, as_json: bool, quiet: bool) -> Exit:
    """Size the services of one scenario for the fewest GPUs, and print the plan."""
    import polars as pl

    from gpuplanner.files.place import require_file
    from gpuplanner.files.single import write_atomically
    from gpuplanner.services.demands import read_service_demands
    from gpuplanner.services.plan_file import services_to_json
    from gpuplanner.services.profiles import BOARD, read_service_profiles
    from gpuplanner.services.search import LATENCY_SHARE, plan_services
    from gpuplanner.services.verify import verify_services

    if out is not None:
        require_file(out, inputs=[files.services, files.rates, files.latencies])
    board = given.fields.get("board", BOARD)
    profiles = read_service_profiles(files.services, board)
    names = profiles["service"].unique(maintain_order=True).to_list()
    rates, latencies = read_service_demands(files.rates, files.latencies, names, row=files.row)
    plan = plan_services(
        profiles,
        rates,
        latencies,
        board,
        latency_share=LATENCY_SHARE if files.latency_share is None else files.latency_share,
        **{name: value for name, value in given.fields.items() if name != "board"},
    )
    faults = verify_services(plan, profiles, rates, latencies)
    values = plan.to_dict()
    if out is not None:
        lasting = services_to_json(plan, profiles, rates, latencies)
        write_atomically(out, lambda path: path.write_text(lasting, encoding="utf-8"))
    if as_json:
        show(values, as_json=True)
    else:
        show({name: values[name] for name in values if name not in ("segments", "layouts")}, as_json=False)
        segments = pl.DataFrame([{k: v for k, v in row.items() if k != "gpus"} for row in values["segments"]])
        show_frame(segments, as_json=False, title="segments")
        layouts = pl.DataFrame({"layout": values["layouts"]}, schema={"layout": pl.String})
        show_frame(
            layouts.group_by("layout", maintain_order=True).len("gpus"), as_json=False, title="GPUs by layout"
        )
    for fault in faults:
        say(f"problem: {fault}")
    if not quiet and out is not None:
        say(f"written: {out}; check it with 'gpuplanner verify {out}'")
    if faults:
        return Exit.CHECK_FAILED
    return Exit.DONE if plan.proven else Exit.TIME_LIMIT
