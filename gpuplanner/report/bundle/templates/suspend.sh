#!/usr/bin/env bash
# SuspendProgram of Slurm: takes the machines of some nodes down, and lets the other nodes of these machines take jobs.
# Run as suspend.sh NODES.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

for node in $(scontrol show hostnames "$1"); do
  read -r machine config < <(awk -v node="$node" '$1 == node { print $2, $3 }' "$here/layouts.txt")
  # One that was refused never came. Powering it down took its drain away, and without that it is called again and again.
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
    # One that was never drained, or came back by itself, needs no resuming.
    scontrol update nodename="$other" state=resume ||
      echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $other is not resumed" >>"$here/power.log"
  done
done
