#!/usr/bin/env bash
# SuspendProgram of Slurm: powers down the machines of the named nodes, and resumes the other node names of these
# machines. Run as suspend.sh NODES.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

for node in $(scontrol show hostnames "$1"); do
  read -r machine config < <(awk -v node="$node" '$1 == node { print $2, $3 }' "$here/layouts.txt")
  # A rejected node never powered up. Power-down removed its drain; without the drain, Slurm would power it up again.
  if [[ "$(cat "$here/up/$machine" 2>/dev/null)" != "$node" ]]; then
    if [[ -e "$here/up/$machine" ]]; then
      scontrol update nodename="$node" state=drain reason="gpuplanner: $machine is up as $(<"$here/up/$machine")"
    fi
    continue
  fi
  echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $node off" >>"$here/power.log"
  bash "$here/power.sh" off "$machine" "$node" "$config"
  rm "$here/up/$machine"
  for other in $(awk -v node="$node" -v machine="$machine" '$2 == machine && $1 != node { print $1 }' "$here/layouts.txt"); do
    # A node that was never drained, or was resumed by Slurm, needs no resume.
    scontrol update nodename="$other" state=resume ||
      echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $other was not resumed" >>"$here/power.log"
  done
done
