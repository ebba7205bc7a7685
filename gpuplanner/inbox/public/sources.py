"""Public traces that can be read; the more special kinds of files stand first."""

from __future__ import annotations

from gpuplanner.inbox.core.source import Form, Source, columns_of, family, header_has, together
from gpuplanner.inbox.public.acme import REDUCED_COLUMNS as ACME_COLUMNS
from gpuplanner.inbox.public.acme import read_acme
from gpuplanner.inbox.public.azure_llm import COLUMN_MAP as AZURE_COLUMNS
from gpuplanner.inbox.public.azure_llm import read_azure_llm
from gpuplanner.inbox.public.distributions import PERCENT, read_distributions
from gpuplanner.inbox.public.dlrm import COLUMN_MAP as DLRM_COLUMNS
from gpuplanner.inbox.public.dlrm import read_dlrm
from gpuplanner.inbox.public.genai import COLUMN_MAP as GENAI_COLUMNS
from gpuplanner.inbox.public.genai import read_genai
from gpuplanner.inbox.public.helios import COLUMN_MAP as HELIOS_COLUMNS
from gpuplanner.inbox.public.helios import read_helios
from gpuplanner.inbox.public.helios_quotas import looks_like_quotas, read_helios_quotas
from gpuplanner.inbox.public.job_lists import (
    ITP_COLUMNS,
    SIMULATOR_COLUMNS,
    SPOT_COLUMNS,
    read_itp,
    read_simulator,
    read_spot,
)
from gpuplanner.inbox.public.miso import looks_like_miso, read_miso
from gpuplanner.inbox.public.occupancy import (
    HELIOS_COLUMNS as SEQUENCE_COLUMNS,
)
from gpuplanner.inbox.public.occupancy import (
    PHILLY_COLUMNS as PHILLY_NODE_COLUMNS,
)
from gpuplanner.inbox.public.occupancy import read_helios_sequence, read_philly_nodes
from gpuplanner.inbox.public.openb import read_openb
from gpuplanner.inbox.public.pai import read_pai, table_of
from gpuplanner.inbox.public.philly import COLUMN_MAP as PHILLY_COLUMNS
from gpuplanner.inbox.public.philly import read_philly
from gpuplanner.inbox.public.philly_log import looks_like_log, read_philly_log
from gpuplanner.inbox.public.step_times import COLUMN_MAP as STEP_COLUMNS
from gpuplanner.inbox.public.step_times import read_step_times
from gpuplanner.inbox.public.supercloud import COLUMN_MAP as SUPERCLOUD_COLUMNS
from gpuplanner.inbox.public.supercloud import read_supercloud
from gpuplanner.inbox.slurm.nodes import read_nodes

TZ, ORIGIN = frozenset({"tz"}), frozenset({"origin"})

PUBLIC = (
    family(
        "philly",
        "Microsoft Philly, 2017: job table (CSV), job log with attempts (JSON) or node sequence (CSV)",
        Form("job table", read_philly, columns_of(PHILLY_COLUMNS), TZ),
        Form("job log", read_philly_log, looks_like_log, TZ),
        Form("node sequence", read_philly_nodes, columns_of(PHILLY_NODE_COLUMNS), TZ, whole_files=False),
    ),
    Source(
        "itp",
        "Microsoft ITP job tables of ElasticFlow, 2021 (CSV, one file per cluster)",
        read_itp,
        columns_of(ITP_COLUMNS),
        ORIGIN,
    ),
    family(
        "openb",
        "Alibaba OpenB, 2023: pod list with GPU shares (CSV; node list with nodes)",
        Form(
            "pod list",
            read_openb,
            header_has(["name", "num_gpu", "gpu_milli"]),
            frozenset({"origin", "nodes"}),
        ),
        Form("node list", read_nodes, header_has(["sn", "gpu", "model"]), whole_files=False),
    ),
    family(
        "helios",
        "SenseTime Helios, 2020: job table, sequences of virtual clusters or their quotas by day (CSV)",
        Form("job table", read_helios, columns_of(HELIOS_COLUMNS), TZ),
        Form("sequence", read_helios_sequence, columns_of(SEQUENCE_COLUMNS), TZ, whole_files=False),
        Form("quotas", read_helios_quotas, looks_like_quotas, whole_files=False),
    ),
    family(
        "acme",
        "Shanghai AI Laboratory Acme, 2023: job tables of Seren and Kalos, or distributions (CSV)",
        Form("job table", read_acme, columns_of(ACME_COLUMNS)),
        Form("distribution", read_distributions, lambda lines: PERCENT in lines[0], whole_files=False),
    ),
    family(
        "pai",
        "Alibaba PAI, 2020: task table with job and instance tables, or mini-batch times (CSV)",
        Form("tables", read_pai, lambda lines: table_of(lines) is not None, ORIGIN, whole_files=False),
        Form("mini-batch times", read_step_times, columns_of(STEP_COLUMNS), whole_files=False),
    ),
    Source("dlrm", "Alibaba DLRM serving instances, 2025 (CSV)", read_dlrm, columns_of(DLRM_COLUMNS), ORIGIN),
    Source(
        "genai",
        "Alibaba GenAI serving gauges, 2026 (CSV under its own name)",
        read_genai,
        columns_of(GENAI_COLUMNS),
        whole_files=together,
    ),
    family(
        "spot",
        "Alibaba spot GPU cluster, 2026: job list or node list (CSV)",
        Form("job list", read_spot, columns_of(SPOT_COLUMNS), ORIGIN),
        Form("node list", read_nodes, header_has(["node_name", "gpu_capacity_num"])),
    ),
    Source(
        "simulator",
        "job list of a simulator: job_id, submit_time, duration, num_gpus in seconds (CSV)",
        read_simulator,
        columns_of(SIMULATOR_COLUMNS),
        ORIGIN,
    ),
    Source(
        "miso",
        "MISO experiment, 2022: arrivals and run times of its jobs (two JSON files)",
        read_miso,
        looks_like_miso,
        ORIGIN,
        whole_files=together,
    ),
    Source(
        "azure-llm",
        "Azure LLM inference requests, 2023 (CSV; needs tz)",
        read_azure_llm,
        columns_of(AZURE_COLUMNS),
        TZ,
        whole_files=together,
    ),
    Source(
        "supercloud",
        "MIT Supercloud Slurm accounting table with integer resources, 2021 (CSV)",
        read_supercloud,
        columns_of(SUPERCLOUD_COLUMNS),
        frozenset(),
    ),
)
