#!/usr/bin/env bash
# ResumeProgram of Slurm: powers up machines in the MIG layout of the named nodes. Run as resume.sh NODES.
#
# A machine has one node name for each MIG layout. While it is up under one name, its other names are drained. If Slurm
# powers up two of them at once, the later one is rejected: its jobs are requeued, and it takes jobs once the machine is
# down.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

note() {
  echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*" >>"$here/power.log"
}

mkdir -p "$here/up"
for node in $(scontrol show hostnames "$1"); do
  read -r machine config < <(awk -v node="$node" '$1 == node { print $2, $3 }' "$here/layouts.txt")
  # slurmctld does not list CLOUD nodes that are powered down, so the folder 'up' records the name of each machine.
  if (set -o noclobber && echo "$node" >"$here/up/$machine") 2>/dev/null || [[ "$(<"$here/up/$machine")" == "$node" ]]; then
    for other in $(awk -v node="$node" -v machine="$machine" '$2 == machine && $1 != node { print $1 }' "$here/layouts.txt"); do
      scontrol update nodename="$other" state=drain reason="gpuplanner: $machine is up as $node"
    done
    note "$node on"
    bash "$here/power.sh" on "$machine" "$node" "$config"
  else
    # Its jobs are requeued and may start on other nodes.
    note "$node rejected: $machine is up as $(<"$here/up/$machine")"
    scontrol update nodename="$node" state=drain reason="gpuplanner: $machine is up as $(<"$here/up/$machine")"
    scontrol update nodename="$node" state=power_down_force
  fi
done
