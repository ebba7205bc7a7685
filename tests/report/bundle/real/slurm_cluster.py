"""A Slurm cluster on this machine: one slurmctld, a slurmd a node, and GPUs that are lines of a file.

slurmd reads ``fake_gpus.conf`` beside its slurm.conf in place of what NVML finds; a node's file lists its devices under
the names that NVML's plugin would give them. ``ssh``, ``systemctl`` and ``nvidia-mig-parted`` are programs of this
file, so that scripts run by their own defaults: ``ssh n1 systemctl restart slurmd`` ends and starts the daemon of n1.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml

SPEED = float(os.environ.get("REPLAY_SPEED", "1"))
"""How many times as fast as it is the clock goes that libfaketime gives to all that is started."""
SCHEDULER = "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0"
PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "sbatch", "squeue", "scancel")
CONF = """\
ClusterName=gpuplanner
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
SlurmctldPort={port}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
DebugFlags=NO_CONF_HASH
{lines}
"""


def missing() -> str | None:
    """What this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(lacking)} (Debian: slurm-wlm, munge)" if lacking else None


class SlurmCluster:
    """Daemons, nodes and their devices, in one folder; ends what it started."""

    def __init__(
        self, folder: Path, nodes: list[str], product: str, gpus: int, lines: str, settings: str = SCHEDULER
    ) -> None:
        self.folder, self.nodes, self.product = folder, nodes, product
        port = _free_ports(len(nodes) + 1)
        (folder / "state").mkdir(parents=True)
        self.facts = {"folder": str(folder), "nodes": nodes, "product": product, "gpus": gpus}
        addresses = "\n".join(
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname=localhost Port={port + 1 + number} CPUs=64 "
            f"RealMemory=1000 {lines.format(node=node)}"
            for number, node in enumerate(nodes)
        )
        known = {"user": getpass.getuser(), "folder": folder, "port": port}
        everyone = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
        everything = f"{settings}\nGresTypes=gpu\n{addresses}\n{everyone}"
        self.conf = folder / "slurm.conf"
        self.conf.write_text(CONF.format(lines=everything, **known))
        for node in nodes:
            (folder / node / "spool").mkdir(parents=True)
            for number in range(gpus * 8):
                (folder / node / f"device{number}").touch()
            # One slurm.conf for all, as a shared one would be; the devices and gres.conf are a node's own.
            (folder / node / "slurm.conf").symlink_to(self.conf)
            write_devices(self.facts, node, ["gpu"] * gpus)
        (folder / "facts.json").write_text(json.dumps(self.facts))
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name in ("ssh", "systemctl", "nvidia-mig-parted"):
            (bin_folder / name).write_text(
                f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {folder} {name} "$@"\n'
            )
            (bin_folder / name).chmod(0o755)
        self.environment = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}:/usr/sbin",
            "SLURM_CONF": str(self.conf),
            "TZ": "UTC",
            "XDG_STATE_HOME": str(folder / "state-home"),
            **clock(),
        }

    def __enter__(self) -> Self:
        try:
            flags = [f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.socket"]
            flags += [f"--{kind}-file={self.folder}/munged.{kind}" for kind in ("pid", "log", "seed")]
            start(self.facts, "munged", ["munged", "-F", "-f", *flags])
            until("munged", (self.folder / "munge.socket").exists)
            start_controller(self.facts)
            for node in self.nodes:
                start_node(self.facts, node)
            until("all nodes idle", lambda: set(self.states().values()) == {"idle"})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self.nodes, "slurmctld", "munged"]:
            stop(self.facts, name)

    def run(self, *words: str | Path, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as somebody who has the scripts would."""
        done = subprocess.run(
            [*map(str, words)], env=self.environment | environment, cwd=self.folder,
            capture_output=True, text=True, timeout=300 * SPEED, check=False,
        )  # fmt: skip
        if code is not None and done.returncode != code:
            msg = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            raise AssertionError(msg)
        return done

    def states(self) -> dict[str, str]:
        """State of each node, in the words of sinfo."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", code=None).stdout.splitlines()
        return dict(line.split() for line in lines)

    def gres(self, node: str) -> str:
        """Gres of a node as the controller has it, without sockets, in a fixed order."""
        found = re.search(r"Gres=(\S*)", self.run("scontrol", "show", "node", node).stdout)
        return ",".join(sorted(re.sub(r"\([^)]*\)", "", found[1] if found else "").split(",")))


def clock() -> dict[str, str]:
    """What lets a program have the clock that this one has."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("FAKETIME") or name in ("LD_PRELOAD", "REPLAY_SPEED")
    }


def found_by_nvml(product: str, profile: str) -> str:
    """The type that slurmd's NVML plugin makes of a device: see ``_get_mig_gpu`` in gpu_nvml.c."""
    whole = product.lower().replace(" ", "_")
    return whole if profile == "gpu" else f"{whole.split('-', 1)[0]}_{profile}"


def write_devices(facts: dict[str, Any], node: str, layouts: list[str]) -> None:
    """Make the GPUs of a node so, and its fake_gpus.conf."""
    folder = Path(facts["folder"]) / node
    (folder / "layouts.json").write_text(json.dumps(layouts))
    kinds = [
        profile
        for layout in layouts
        for part in layout.split(",")
        for profile, _, count in [part.partition(":")]
        for _ in range(int(count or 1))
    ]
    types = [found_by_nvml(facts["product"], kind) for kind in kinds]
    lines = [f"{kind}|64|(null)|(null)|{folder}/device{number}" for number, kind in enumerate(types)]
    (folder / "fake_gpus.conf").write_text("\n".join(lines) + "\n")


def start(facts: dict[str, Any], name: str, command: list[str], **environment: str) -> None:
    """Start a daemon, and note its number."""
    folder = Path(facts["folder"])
    known = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin", "TZ": "UTC"} | environment
    out = (os.POSIX_SPAWN_OPEN, 1, str(folder / f"{name}.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    actions = [out, (os.POSIX_SPAWN_DUP2, 1, 2), (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
    program = shutil.which(command[0], path=known["PATH"]) or command[0]
    number = os.posix_spawn(program, command, known, file_actions=actions, setsid=True)
    (folder / f"{name}.number").write_text(str(number))


def start_controller(facts: dict[str, Any], *flags: str) -> None:
    start(facts, "slurmctld", ["slurmctld", "-D", *flags], SLURM_CONF=f"{facts['folder']}/slurm.conf")


def start_node(facts: dict[str, Any], node: str, *flags: str) -> None:
    conf = f"{facts['folder']}/{node}/slurm.conf"
    start(facts, node, ["slurmd", "-D", "-N", node, "-f", conf, *flags], SLURM_CONF=conf)


def stop(facts: dict[str, Any], name: str) -> None:
    """End a daemon that was started here, and nothing else."""
    path = Path(facts["folder"]) / f"{name}.number"
    if not path.exists():
        return
    number = int(path.read_text())
    path.unlink()
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(number, ending)
        for _ in range(50):
            if not _alive(number):
                return
            time.sleep(0.1 * SPEED)


def until(what: str, check: Callable[[], object], limit_s: float = 120.0) -> None:
    """Wait for something, in seconds as they pass here whatever the clock says."""
    end = time.monotonic() + limit_s * SPEED
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"gave up waiting for {what}")
        time.sleep(0.2 * SPEED)


def _alive(number: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(number, os.WNOHANG)
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_ports(count: int) -> int:
    """The first of some ports in a row that nobody listens on."""
    for first in range(21000 + secrets.randbelow(20000), 60000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def main(folder: str, program: str, *words: str) -> int:
    """Be ``ssh``, ``systemctl``, ``nvidia-mig-parted``, or a machine's switch."""
    facts = json.loads((Path(folder) / "facts.json").read_text())
    if program == "power":  # what a site writes: on or off, machine, node, configuration
        if words[0] == "on":
            start_node(facts, words[2], "-b")  # else it does not count as started anew
        else:
            stop(facts, words[2])
        return 0
    if program == "ssh":
        environment = os.environ | {"NODE": words[0]}
        return subprocess.run(words[1:], env=environment, check=False).returncode
    if program == "systemctl":
        assert words[0] == "restart"
        name = os.environ["NODE"] if words[1] == "slurmd" else words[1]
        stop(facts, name)
        if name == "slurmctld":
            start_controller(facts)
            conf = {"SLURM_CONF": f"{folder}/slurm.conf"}
            ping = ["scontrol", "ping"]
            until(
                "slurmctld",
                lambda: b"UP" in subprocess.run(ping, env=os.environ | conf, capture_output=True, check=False).stdout,
            )
        else:
            start_node(facts, name)
        return 0
    return parted(facts, *words)


def parted(facts: dict[str, Any], verb: str, *words: str) -> int:
    """Do what mig-parted does with ``-f FILE -c CONFIG``, on the devices of $NODE."""
    node = os.environ["NODE"]
    path = Path(facts["folder"]) / node / "layouts.json"
    if verb == "export":
        layouts = json.loads(path.read_text())
        entries = [
            {"devices": [gpu], "mig-enabled": layout != "gpu"}
            | (
                {}
                if layout == "gpu"
                else {"mig-devices": {k: int(v) for k, v in (p.split(":") for p in layout.split(","))}}
            )
            for gpu, layout in enumerate(layouts)
        ]
        print(yaml.safe_dump({"version": "v1", "mig-configs": {words[-1]: entries}}))  # noqa: T201
        return 0
    options = dict(zip(words[-4::2], words[-3::2], strict=True))
    text = sys.stdin.read() if options["-f"] == "-" else Path(options["-f"]).read_text()
    configs = yaml.safe_load(text)["mig-configs"]
    if options["-c"] not in configs:
        return 1
    if verb == "apply":
        layouts = json.loads(path.read_text())
        for entry in configs[options["-c"]]:
            for gpu in range(facts["gpus"]) if entry["devices"] == "all" else entry["devices"]:
                counts = entry.get("mig-devices", {})
                layouts[gpu] = ",".join(f"{k}:{v}" for k, v in counts.items()) if entry["mig-enabled"] else "gpu"
        write_devices(facts, node, layouts)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
