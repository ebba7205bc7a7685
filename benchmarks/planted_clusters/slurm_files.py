"""Write the files that a site exports of a simulated cluster: jobs with their use, nodes, limits and outages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from counterfactuals import Truth
from queue_simulator import DOWN
from workloads import DAY_S, HOUR_S, RECORD_S, TENANT_WEIGHTS, TENANTS

RECORD_START_S = int(datetime(2026, 8, 31, tzinfo=UTC).timestamp())
SACCT_COLUMNS = "JobID|User|Account|Partition|State|Submit|Eligible|Start|End|TimelimitRaw|NNodes|NodeList"
SACCT_COLUMNS += "|ReqTRES|AllocTRES|ElapsedRaw|TRESUsageInTot"
CPU_TRES = "billing=4,cpu=4,mem=8G,node=1"
FIRST_JOB_ID = 700000


def node_names(truth: Truth) -> list[str]:
    """Return the name of each node of today's fleet."""
    layouts = dict(zip(truth.fleet.node.tolist(), truth.fleet.layout.tolist(), strict=True))
    profiles = [layout.profile for layout in truth.world.layouts]
    return [f"{'mig' if profiles[layout] else 'gpu'}{node + 1:02d}" for node, layout in layouts.items()]


def write_sacct(path: Path, truth: Truth) -> dict:
    """Write the jobs of the record as ``sacct --parsable2`` prints them at its end, and return their sums.

    A week before the record is simulated too, so jobs run when it starts. GPU-hours reach from the start of a job to
    its end or that of the record; an instance counts by its compute slices. A health check without GPUs
    runs every hour, until the last second of the record.
    """
    world, today, jobs = truth.world, truth.today, truth.policy.jobs
    names = node_names(truth)
    low_use = any(demand.low_use_fraction for demand in world.demands)
    lines = [SACCT_COLUMNS]
    sums = {"jobs": 0, "gpu_hours": 0.0, "instance_hours": 0.0, "gpu_hours_of_record": 0.0}
    outcomes = zip(today.start_s.tolist(), today.end_s.tolist(), today.withdrawn_s.tolist(), today.killed, strict=True)
    for index, (job, (start_s, end_s, withdrawn_s, killed)) in enumerate(
        zip(jobs.iter_rows(named=True), outcomes, strict=True)
    ):
        if job["submit_s"] >= RECORD_S or min(end_s, withdrawn_s) <= 0:
            continue
        sums["jobs"] += 1
        job_id = str(FIRST_JOB_ID + index)
        layout, gpus, nodes = world.layouts[job["layout"]], job["gpus"], str(job["nodes"])
        account = TENANTS[job["tenant"]]
        user = f"svc{job['user']}" if job["service"] else f"{account[:3]}{job['user']:02d}"
        urgent = job["boost_s"] >= DAY_S and not job["service"]
        partition = "mig" if layout.profile else "urgent" if urgent else "gpu"
        tres = f"cpu={8 * gpus},gres/gpu:{layout.gres}={gpus},gres/gpu={gpus},mem={64 * gpus}G,node={nodes}"
        submitted = f"{_time(job['submit_s'])}|{_time(job['eligible_s'])}"
        request = f"{job['time_limit_s'] // 60}|{nodes}"
        if start_s >= RECORD_S:
            withdrawn = withdrawn_s < RECORD_S
            state = f"CANCELLED by {2000 + job['user']}" if withdrawn else "PENDING"
            times = f"{submitted}|{'None' if withdrawn else 'Unknown'}|{_time(withdrawn_s)}"
            lines.append(
                f"{job_id}|{user}|{account}|{partition}|{state}|{times}|{request}|None assigned"
                f"|billing={8 * gpus},{tres}||0|"
            )
            continue
        state = "RUNNING" if end_s >= RECORD_S else "NODE_FAIL" if killed else job["state"]
        by = f" by {2000 + job['user']}" if state == "CANCELLED" else ""
        on_nodes = _hostlist(sorted({names[truth.fleet.node[unit]] for unit in today.units[index] if unit >= 0}))
        elapsed_s = min(end_s, RECORD_S) - start_s
        times = f"{_time(start_s)}|{_time(end_s)}"
        lines.append(
            f"{job_id}|{user}|{account}|{partition}|{state}{by}|{submitted}|{times}|{request}|{on_nodes}"
            f"|billing={8 * gpus},{tres}|billing={8 * gpus},{tres}|{elapsed_s}|"
        )
        percent, memory_gib = (10, 5) if job["low_use"] else (90, 50)
        used = f"gres/gpumem={memory_gib * gpus}G,gres/gpuutil={percent * gpus}" if low_use else ""
        lines.append(
            f"{job_id}.batch||{account}||{state}|{_time(start_s)}|{_time(start_s)}|{times}||1|{on_nodes}||{tres}"
            f"|{elapsed_s}|cpu=00:10:00,{used}"
        )
        sums["instance_hours"] += gpus * elapsed_s / HOUR_S
        sums["gpu_hours"] += gpus * elapsed_s / HOUR_S * layout.gpu_fraction
        sums["gpu_hours_of_record"] += gpus * (elapsed_s + min(start_s, 0)) / HOUR_S * layout.gpu_fraction
    for hour in range(RECORD_S // HOUR_S):
        submit_s = (hour + 1) * HOUR_S - 9
        times = "|".join(_time(submit_s + offset) for offset in (0, 0, 2, 8))
        lines.append(f"{hour + 1}|root|ops|cpu|COMPLETED|{times}|60|1|cpu01|{CPU_TRES}|{CPU_TRES}|6|")
    path.write_text("\n".join(lines) + "\n")
    return {name: round(value, 3) for name, value in sums.items()}


def write_nodes(path: Path, truth: Truth) -> None:
    """Write the nodes as ``scontrol show node`` prints them at the end of the record."""
    closed = {node: state for node, start_s, end_s, state in truth.outages if start_s < RECORD_S <= end_s}
    texts = []
    for node, name in enumerate(node_names(truth)):
        on_node = truth.fleet.node == node
        gres = truth.world.layouts[truth.fleet.layout[on_node][0]].gres
        count = truth.fleet.capacity[on_node].sum()
        state = "MIXED" if node not in closed else "DOWN" if closed[node] == DOWN else "MIXED+DRAIN"
        texts.append(
            f"NodeName={name} Arch=x86_64 CoresPerSocket=64\n"
            "   CPUAlloc=0 CPUEfctv=128 CPUTot=128 CPULoad=21.70\n"
            "   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n"
            f"   Gres=gpu:{gres}:{count}(S:0-1)\n"
            f"   NodeAddr={name} NodeHostName={name} Version=23.11.6\n"
            "   RealMemory=2063000 AllocMem=0 FreeMem=913200 Sockets=2 Boards=1\n"
            f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
            "   Partitions=gpu,mig,urgent\n"
            f"   CfgTRES=cpu=128,mem=2063000M,billing=128,gres/gpu={count},gres/gpu:{gres}={count}\n"
            "   AllocTRES=\n   CurrentWatts=0 AveWatts=0\n"
        )
    path.write_text("\n".join(texts))


def write_associations(path: Path, truth: Truth) -> None:
    """Write the limits and shares of the accounts as ``sacctmgr --parsable2 show assoc`` prints them."""
    lines = ["Cluster|Account|Par Name|User|Share|GrpTRES", "hpc|root|||1|"]
    for tenant, weight in zip(TENANTS, TENANT_WEIGHTS, strict=True):
        share = round(1000 * weight) if truth.world.fair_share_weight_s else 1
        limit = f"gres/gpu={truth.world.tenant_limits[tenant]}" if truth.world.tenant_limits else ""
        lines.append(f"hpc|{tenant}|root||{share}|{limit}")
    path.write_text("\n".join(lines) + "\n")


def write_events(path: Path, truth: Truth) -> None:
    """Write the outages as ``sacctmgr --parsable2 show event`` prints them, in UTC."""
    lines = ["Cluster|NodeName|TimeStart|TimeEnd|State|Reason"]
    names = node_names(truth)
    for node, start_s, end_s, state in truth.outages:
        if node < len(names) and end_s > 0:
            start, end = (datetime.fromtimestamp(RECORD_START_S + time_s, UTC) for time_s in (start_s, end_s))
            ended = "Unknown" if end_s >= RECORD_S else f"{end:%Y-%m-%dT%H:%M:%S}"
            words = "DOWN*|Not responding" if state == DOWN else "DRAIN|maintenance"
            lines.append(f"hpc|{names[node]}|{start:%Y-%m-%dT%H:%M:%S}|{ended}|{words}")
    path.write_text("\n".join(lines) + "\n")


def _time(second: int) -> str:
    """Return a time in unix seconds, as with SLURM_TIME_FORMAT=%s; Unknown after the end of the record."""
    return "Unknown" if second >= RECORD_S else str(RECORD_START_S + second)


def _hostlist(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0][:3]}[{','.join(name[3:] for name in names)}]"
