"""Public traces and bills that can be read; the more special kinds of files stand first."""

from __future__ import annotations

from gpuplanner.traces.acme import REDUCED_COLUMNS as ACME_COLUMNS
from gpuplanner.traces.acme import read_acme
from gpuplanner.traces.azure_llm import COLUMN_MAP as AZURE_COLUMNS
from gpuplanner.traces.azure_llm import read_azure_llm
from gpuplanner.traces.cur import COLUMN_MAP as CUR_COLUMNS
from gpuplanner.traces.cur import cur2_name, read_cur
from gpuplanner.traces.distributions import PERCENT, read_distributions
from gpuplanner.traces.dlrm import COLUMN_MAP as DLRM_COLUMNS
from gpuplanner.traces.dlrm import read_dlrm
from gpuplanner.traces.focus import COLUMN_MAP as FOCUS_COLUMNS
from gpuplanner.traces.focus import read_focus
from gpuplanner.traces.genai import COLUMN_MAP as GENAI_COLUMNS
from gpuplanner.traces.genai import read_genai
from gpuplanner.traces.helios import COLUMN_MAP as HELIOS_COLUMNS
from gpuplanner.traces.helios import read_helios
from gpuplanner.traces.helios_quotas import looks_like_quotas, read_helios_quotas
from gpuplanner.traces.itp import COLUMN_MAP as ITP_COLUMNS
from gpuplanner.traces.itp import read_itp
from gpuplanner.traces.miso import looks_like_miso, read_miso
from gpuplanner.traces.node_lists import looks_like_nodes, read_nodes
from gpuplanner.traces.occupancy import (
    HELIOS_COLUMNS as SEQUENCE_COLUMNS,
)
from gpuplanner.traces.occupancy import (
    PHILLY_COLUMNS as PHILLY_NODE_COLUMNS,
)
from gpuplanner.traces.occupancy import read_helios_sequence, read_philly_nodes
from gpuplanner.traces.openb import read_openb
from gpuplanner.traces.pai import read_pai, table_of
from gpuplanner.traces.philly import COLUMN_MAP as PHILLY_COLUMNS
from gpuplanner.traces.philly import read_philly
from gpuplanner.traces.philly_log import looks_like_log, read_philly_log
from gpuplanner.traces.simulator import COLUMN_MAP as SIMULATOR_COLUMNS
from gpuplanner.traces.simulator import read_simulator
from gpuplanner.traces.source import Form, Source, columns_of, family, header_has
from gpuplanner.traces.spot import COLUMN_MAP as SPOT_COLUMNS
from gpuplanner.traces.spot import read_spot
from gpuplanner.traces.step_times import COLUMN_MAP as STEP_COLUMNS
from gpuplanner.traces.step_times import read_step_times

TZ, ORIGIN = frozenset({"tz"}), frozenset({"origin"})

TRACES = (
    family(
        "philly",
        "Microsoft Philly, 2017: job table (CSV), job log with attempts (JSON) or node sequence (CSV)",
        Form("job table", read_philly, columns_of(PHILLY_COLUMNS), TZ),
        Form("job log", read_philly_log, looks_like_log, TZ),
        Form("node sequence", read_philly_nodes, columns_of(PHILLY_NODE_COLUMNS), TZ),
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
        Form("node list", read_nodes, header_has(["sn", "gpu", "model"])),
    ),
    family(
        "helios",
        "SenseTime Helios, 2020: job table, sequences of virtual clusters or their quotas by day (CSV)",
        Form("job table", read_helios, columns_of(HELIOS_COLUMNS), TZ),
        Form("sequence", read_helios_sequence, columns_of(SEQUENCE_COLUMNS), TZ),
        Form("quotas", read_helios_quotas, looks_like_quotas),
    ),
    family(
        "acme",
        "Shanghai AI Laboratory Acme, 2023: job tables of Seren and Kalos, or distributions (CSV)",
        Form("job table", read_acme, columns_of(ACME_COLUMNS)),
        Form("distribution", read_distributions, lambda lines: PERCENT in lines[0]),
    ),
    family(
        "pai",
        "Alibaba PAI, 2020: task table with job and instance tables, or mini-batch times (CSV)",
        Form("tables", read_pai, lambda lines: table_of(lines) is not None, ORIGIN),
        Form("mini-batch times", read_step_times, columns_of(STEP_COLUMNS)),
    ),
    Source("dlrm", "Alibaba DLRM serving instances, 2025 (CSV)", read_dlrm, columns_of(DLRM_COLUMNS), ORIGIN),
    Source(
        "genai",
        "Alibaba GenAI serving gauges, 2026 (CSV under its own name)",
        read_genai,
        columns_of(GENAI_COLUMNS),
        frozenset(),
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
    ),
    Source(
        "azure-llm",
        "Azure LLM inference requests, 2023 (CSV; needs tz)",
        read_azure_llm,
        columns_of(AZURE_COLUMNS),
        TZ,
    ),
    Source(
        "nodes",
        "node list: node, gpus, gpu_model (CSV), or scontrol show node, sinfo -N",
        read_nodes,
        looks_like_nodes,
        frozenset(),
    ),
)

_CUR = [name for name, field in CUR_COLUMNS.items() if not field.optional]
_SNIFFS = header_has(_CUR), header_has(map(cur2_name, _CUR))

BILLS = (
    Source(
        "focus",
        "bill in FOCUS 1.0, 1.1 or 1.2 (CSV or Parquet, or a folder of parts)",
        read_focus,
        columns_of(FOCUS_COLUMNS),
        frozenset(),
    ),
    Source(
        "cur",
        "AWS Cost and Usage Report, legacy or 2.0 (CSV or Parquet, or a folder of parts)",
        read_cur,
        lambda lines: any(sniff(lines) for sniff in _SNIFFS),
        frozenset(),
    ),
)

PUBLIC = (*TRACES, *BILLS)
"""Sources of public traces, then of bills."""
