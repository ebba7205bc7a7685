"""Whether the plans that ParvaGPU ships for its scenarios take the fewest GPUs."""

from __future__ import annotations

from typing import Literal

import polars as pl

from gpuplanner.lab.claims.published_claim import Conditions, Measured, PublishedClaim
from gpuplanner.lab.claims.verdict import figure, figures_of

PROFILES, DEMANDS = "parvagpu/prof_data", "parvagpu/SLO"
SHIPPED = {1: (2, 10), 2: (3, 20), 3: (5, 33), 4: (7, 48)}
"""GPUs and compute slices by scenario: rows of ``deployment/SLO*/SLO*_ParvaGPU_deploy.csv``."""
READINGS: tuple[Literal["process", "instance"], ...] = ("process", "instance")


def measure(conditions: Conditions) -> Measured:
    """Size the services of each scenario together, with a proof, and compare."""
    from gpuplanner.services.demands import read_service_demands
    from gpuplanner.services.profiles import read_service_profiles
    from gpuplanner.services.search import LATENCY_SHARE, plan_services
    from gpuplanner.services.verify import verify_services

    folder = conditions.folder()
    found = []
    for reading in READINGS:
        profiles = read_service_profiles(folder / PROFILES, throughput_of=reading)
        names = profiles["service"].unique(maintain_order=True).to_list()
        for scenario, (gpus, slices) in SHIPPED.items():
            asked, limits = (folder / DEMANDS / f"SLO_{name}.csv" for name in ("req_rate", "latency"))
            rates, latencies = read_service_demands(asked, limits, names, row=scenario)
            plan = plan_services(profiles, rates, latencies)
            faults = verify_services(plan, profiles, rates, latencies)
            found.append(
                {
                    "scenario": scenario,
                    "throughput_of": reading,
                    "shipped_gpus": gpus,
                    "least_gpus": plan.gpus,
                }
                | {
                    "bound": plan.bound,
                    "proven": plan.proven,
                    "shipped_slices": slices,
                    "slices": plan.slices,
                }
                | {"check": "sound" if not faults else faults[0]}
            )
    table = pl.DataFrame(found)
    first = table.filter(throughput_of=READINGS[0])
    rows = [
        figure(
            f"scenario {row['scenario']}: GPUs that are enough",
            "GPUs",
            float(row["least_gpus"]),
            claimed=(float(row["shipped_gpus"]), None),
            interval=(float(row["bound"]), float(row["least_gpus"])),
        )
        for row in first.iter_rows(named=True)
    ]
    fewer = first.filter(pl.col("least_gpus") < pl.col("shipped_gpus"))
    why = (
        f"{'Proven to be enough' if first['proven'].all() else 'Enough'}: {_listed(first['least_gpus'])} GPUs; "
        f"ParvaGPU ships {_listed(first['shipped_gpus'])}, more than needed in {fewer.height} of {first.height} "
        f"scenarios. Its plans take {_listed(first['shipped_slices'])} compute slices, ours "
        f"{_listed(first['slices'])}."
    )
    return Measured.by(
        figures_of(rows),
        why,
        tables={"scenarios": table},
        remarks=(
            "A published throughput is taken as that of one process, as ParvaGPU's own code takes it; the table has "
            "the other reading as well.",
            f"A batch may take {LATENCY_SHARE:g} of the latency limit here.",
        ),
    )


def _listed(column: pl.Series) -> str:
    return ", ".join(map(str, column))


CLAIM = PublishedClaim(
    name="services",
    title="Services",
    words="ParvaGPU's plans serve inference services on the fewest GPUs: 2, 3, 5 and 7 in its first four scenarios.",
    source="Lee et al., ParvaGPU, SC 2024; the plans of its repository, MunQ-Lee/ParvaGPU_SC24 @ 5f3de1e18582",
    on="its measured profiles of eleven models on MIG slices of an A100, and its request rates and latency limits",
    takes="a second",
    measure=measure,
    needs=(PROFILES, DEMANDS),
)
