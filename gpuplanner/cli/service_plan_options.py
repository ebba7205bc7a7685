"""Options of ``plan`` that size inference services, and the output of that plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gpuplanner.cli.application import Exit, ScenarioOptions, notify, require_outputs, show, show_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Services = Annotated[
    Path | None, Option(metavar="DIR", help="Size inference services: folder of measured profiles, one CSV file each.")
]
"""Option ``--services``: folder of measured profiles of inference services."""
Rates = Annotated[
    Path | None, Option(metavar="CSV", help="With --services: requests per second, one column for each service.")
]
"""Option ``--rates``: CSV file of requests per second of each service."""
Latencies = Annotated[Path | None, Option(metavar="CSV", help="With --services: latency limits in ms, as --rates.")]
"""Option ``--latencies``: CSV file of the latency limits of each service [ms]."""
Row = Annotated[int | None, Option(min=1, help="With --services: row of --rates and --latencies.")]
"""Option ``--row``: row of both CSV files that is used, from 1."""
LatencyShare = Annotated[
    float | None, Option(help="With --services: share of the latency limit that a batch may take. [default: 0.45]")
]
"""Option ``--latency-share``: share of the latency limit that a batch may take [0-1]."""


OptionalScenarioPath = Annotated[
    str | None,
    Argument(
        metavar="SCENARIO",
        help="Scenario YAML file, dataset folder written by 'gpuplanner ingest', or 'sample'; none with --services.",
    ),
]
"""Argument SCENARIO of ``plan``, which is left out with ``--services``."""


@dataclass(frozen=True)
class ServiceFiles:
    """Files of the inference services to size.

    - ``services``: Folder of measured profiles.
    - ``rates``, ``latencies``: CSV files of requests per second and latency limits [ms].
    - ``row``: Row of both files, counted from 1.
    - ``latency_share``: Share of the latency limit that a batch may take [0-1].
    """

    services: Path
    rates: Path
    latencies: Path
    row: int
    latency_share: float | None


def check_service_options(
    scenario_path: str | None,
    assignments: Sequence[str],
    services: Path | None,
    rates: Path | None,
    latencies: Path | None,
    row: int | None,
    latency_share: float | None,
) -> ServiceFiles | None:
    """Check that the options of ``plan`` for services fit together; None if a scenario is to be planned.

    Parameters
    ----------
    scenario_path : str, optional
        Argument SCENARIO.
    assignments : sequence of str
        Values of ``--set``.
    services, rates, latencies : Path, optional
        Files of the services.
    row : int, optional
        Row of rates and latencies.
    latency_share : float, optional
        Share of the latency limit that a batch may take. [0-1]

    Raises
    ------
    typer.BadParameter
        If options are missing or exclude each other.

    Examples
    --------
    >>> check_service_options("sample", (), None, None, None, None, None) is None
    True
    """
    is_without_services = all(value is None for value in (rates, latencies, row, latency_share))
    if services is None and scenario_path is not None and is_without_services:
        return None
    if services is None:
        text = "give a SCENARIO, or --services with --rates and --latencies"
        if scenario_path is not None:
            text = "--rates, --latencies, --row and --latency-share need --services"
    elif scenario_path is not None or assignments:
        text = "use --services without SCENARIO and without --set"
    elif rates is None or latencies is None:
        text = "--services needs --rates and --latencies"
    else:
        return ServiceFiles(services, rates, latencies, row or 1, latency_share)
    raise typer.BadParameter(text)


def write_plan(out: Path | None, text: Callable[[], str]) -> None:
    """Write the text of a plan to a file; nothing without a file."""
    from gpuplanner.core.output_writing import write_atomically

    if out is not None:
        content = text()
        write_atomically(out, lambda path: path.write_text(content, encoding="utf-8"))


def written_plan_lines(out: Path | None) -> list[str]:
    """Make the messages that name the file of a plan and the command that verifies it; none without a file."""
    return [] if out is None else [f"written: {out} (check it: gpuplanner verify {out})"]


def size_services(
    files: ServiceFiles, options: ScenarioOptions, *, out: Path | None, as_json: bool, quiet: bool
) -> Exit:
    """Size inference services for the fewest GPUs, verify and print the plan.

    Parameters
    ----------
    files : ServiceFiles
        Profiles, rates and latency limits.
    options : ScenarioOptions
        GPU model, seed and limits of the search.
    out : Path, optional
        File for the plan.
    as_json, quiet : bool
        Print JSON; print no messages.

    Returns
    -------
    Exit
        Exit code of the command.
    """
    import polars as pl

    from gpuplanner.planner.inference_service_measurements import (
        PROFILED_GPU_MODEL,
        read_service_demands,
        read_service_profiles,
    )
    from gpuplanner.planner.inference_service_plan import (
        BATCH_LATENCY_FRACTION,
        plan_services,
        services_to_json,
        verify_services,
    )

    require_outputs(out, inputs=[files.services, files.rates, files.latencies])
    gpu_model = options.fields.get("gpu_model", PROFILED_GPU_MODEL)
    profiles = read_service_profiles(files.services, gpu_model)
    names = profiles["service"].unique(maintain_order=True).to_list()
    rates, latencies = read_service_demands(files.rates, files.latencies, names, row=files.row)
    limits = {name: value for name, value in options.fields.items() if name != "gpu_model"}
    share = BATCH_LATENCY_FRACTION if files.latency_share is None else files.latency_share
    plan = plan_services(profiles, rates, latencies, gpu_model, latency_share=share, **limits)
    faults = verify_services(plan, profiles, rates, latencies)
    values = plan.to_dict()
    write_plan(out, lambda: services_to_json(plan, profiles, rates, latencies))
    if as_json:
        show(values, as_json=True)
    else:
        show({name: values[name] for name in values if name not in ("segments", "layouts")})
        segments = pl.DataFrame([{k: v for k, v in row.items() if k != "gpus"} for row in values["segments"]])
        show_frame(segments, title="Segments")
        layouts = pl.DataFrame({"layout": values["layouts"]}, schema={"layout": pl.String})
        show_frame(layouts.group_by("layout", maintain_order=True).len("gpus"), title="GPUs by layout")
    notify(*(f"problem: {fault}" for fault in faults))
    notify(*written_plan_lines(out), quiet=quiet)
    if faults:
        return Exit.CHECK_FAILED
    return Exit.DONE if plan.proven else Exit.TIME_LIMIT
