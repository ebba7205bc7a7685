#!/usr/bin/env bash
# MIG layout change planned for @TIME@, board @BOARD@, on a Slurm cluster.
#
#   bash FILE reserve TIME   reserve the nodes from TIME (as 'date -d' reads it) on: jobs that could run past it start
#                            elsewhere; the index says from when on, 'apply' ends it
#   bash FILE apply     drain, wait until empty, cut, install the new lines, reconfigure, compare, resume
#   bash FILE verify    compare each node with the plan; changes nothing
#
# slurm.conf is one for all nodes, so they change together: those that are empty first wait for the last. The script
# stops at the first fault and leaves the nodes drained. To go back, apply the script of the time before.
#
# Environment, commands that your site may have to replace:
#   CUT          run as CUT NODE CONFIG; default: ssh NODE nvidia-mig-parted apply -f PARTED -c CONFIG
#   PARTED       where mig-parted.yaml lies on the nodes (/etc/nvidia-mig-manager/config.yaml)
#   INSTALL      run as INSTALL FILE: merges @LINES@ into slurm.conf on every host, and renews
#                gres.conf of the nodes where it is a static one. There is no default.
#   RECONFIGURE  default: scontrol reconfigure, which is enough from Slurm 23.11 on. Before, the number of devices
#                changes only with new daemons: restart slurmctld, then slurmd on the nodes.
#   TIMEOUT_S    (@TIMEOUT_S@) for each wait
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}"
readonly parted="${PARTED:-/etc/nvidia-mig-manager/config.yaml}"
readonly nodes=(@NODES@)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly lines="$here/@LINES@"

declare -A config=() gres=()
@STEPS@

fail() {
  echo "$1" >&2
  exit 1
}

field() { # NODE KEY: what Slurm says of a node, without the sockets of devices
  scontrol show node "$1" | awk -v key="$2=" '
    { for (i = 1; i <= NF; i++) if (index($i, key) == 1) { print substr($i, length(key) + 1); exit } }' |
    sed 's/([^)]*)//g'
}

sorted() {
  tr ',' '\n' | LC_ALL=C sort | paste -s -d ',' -
}

cut_node() { # NODE CONFIG
  if [[ -n "${CUT:-}" ]]; then
    $CUT "$1" "$2"
  else
    ssh "$1" nvidia-mig-parted apply -f "$parted" -c "$2"
  fi
}

wait_until_empty() { # NODE
  local jobs deadline=$((SECONDS + timeout_s))
  while true; do
    jobs=$(squeue --noheader --nodelist="$1" --format=%A | paste -s -d ' ' -)
    if [[ -z "$jobs" ]]; then return; fi
    if ((SECONDS >= deadline)); then fail "$1: still at work: $jobs. It is drained; start again later."; fi
    sleep "$poll_s"
  done
}

compare() { # NODE
  local found state deadline=$((SECONDS + timeout_s))
  while true; do
    found=$(field "$1" Gres | sorted)
    state=$(field "$1" State)
    if [[ "$found" == "${gres[$1]}" && ! "$state" =~ INVAL|DOWN|NOT_RESPONDING|\* ]]; then break; fi
    # After a change the daemons take a moment to register again.
    if [[ "$verb" != apply ]] || ((SECONDS >= deadline)); then
      fail "$1: expected '${gres[$1]}', Slurm has '$found' in state $state: $(field "$1" Reason)"
    fi
    sleep "$poll_s"
  done
  echo "$1: $state, $found"
}

verb="${1:-}"
[[ ($# == 1 && "$verb" =~ ^(apply|verify)$) || ($# == 2 && "$verb" == reserve) ]] || {
  echo "usage: bash $0 apply|verify, or bash $0 reserve TIME" >&2
  exit 2
}
readonly reservation='gpuplanner-@NAME@'
if [[ "$verb" == reserve ]]; then
  start=$(date -d "$2" +%Y-%m-%dT%H:%M:%S)
  scontrol create reservation reservationname="$reservation" starttime="$start" duration=infinite users=root \
    flags=maint,ignore_jobs nodes="$(IFS=,; echo "${nodes[*]}")"
  exit
fi
if [[ "$verb" == apply ]]; then
  [[ -n "${INSTALL:-}" ]] || fail "INSTALL must name the command that merges @LINES@ into slurm.conf."
  for node in "${nodes[@]}"; do
    scontrol update nodename="$node" state=drain reason='gpuplanner @NAME@'
  done
  for node in "${nodes[@]}"; do wait_until_empty "$node"; done
  for node in "${nodes[@]}"; do cut_node "$node" "${config[$node]}"; done
  $INSTALL "$lines"
  ${RECONFIGURE:-scontrol reconfigure}
fi
for node in "${nodes[@]}"; do compare "$node"; done
if [[ "$verb" == apply ]]; then
  for node in "${nodes[@]}"; do scontrol update nodename="$node" state=resume; done
  if scontrol show reservation "$reservation" >/dev/null 2>&1; then
    scontrol delete reservationname="$reservation"
  fi
fi
