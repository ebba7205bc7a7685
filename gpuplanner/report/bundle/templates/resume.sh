#!/usr/bin/env bash
# ResumeProgram of Slurm: brings the machines of some nodes up, each cut as the node is. Run as resume.sh NODES.
#
# One machine has a node for each way that it may be cut. While one of them is up the others are drained; if two were
# called at once the later one is refused, its jobs are queued again, and it takes jobs once the machine is down.
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
  # slurmctld tells nobody about nodes of the cloud that are down, so what a machine is up as is written down here.
  if (set -o noclobber && echo "$node" >"$here/up/$machine") 2>/dev/null || [[ "$(<"$here/up/$machine")" == "$node" ]]; then
    for other in $(awk -v node="$node" -v machine="$machine" '$2 == machine && $1 != node { print $1 }' "$here/layouts.txt"); do
      scontrol update nodename="$other" state=drain reason="gpuplanner: $machine is up as $node"
    done
    note "$node on"
    bash "$here/power.sh" on "$machine" "$node" "$config"
  else
    # Its jobs are queued again, and may go elsewhere.
    note "$node refused: $machine is up as $(<"$here/up/$machine")"
    scontrol update nodename="$node" state=drain reason="gpuplanner: $machine is up as $(<"$here/up/$machine")"
    scontrol update nodename="$node" state=power_down_force
  fi
done
