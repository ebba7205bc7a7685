#!/usr/bin/env bash
# Empties the nodes of released.txt, which are not needed, and keeps jobs away from them.
#
#   bash FILE apply     drain, wait until the jobs there have ended; ends none
#   bash FILE verify    say whether they are empty and stay so; changes nothing
#   bash FILE rollback  let jobs come again
#
# @AFTERWARDS@
# Apply it as often as you like: what has not emptied within TIMEOUT_S stays drained, and the script ends with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" reason='gpuplanner: not needed'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/released.txt"
list=$(IFS=,; echo "${nodes[*]}")

@COMMON@
state_of() { # NODE
  scontrol show node "$1" | awk '{ for (i = 1; i <= NF; i++) if (index($i, "State=") == 1) print substr($i, 7) }'
}

ours() { # NODE: whether we drained it
  scontrol show node "$1" | grep -qF "Reason=$reason"
}

empty() { # whether no job is on any of them; says which is
  local jobs
  jobs=$(squeue --noheader --nodelist="$list" --format=%A | paste -s -d ' ' -)
  if [[ -n "$jobs" ]]; then
    echo "Still at work: $jobs" >&2
    return 1
  fi
}

verb="${1:-}"
case "$verb" in
  apply)
    for node in "${nodes[@]}"; do
      if [[ "$(state_of "$node")" != *DRAIN* ]]; then scontrol update nodename="$node" state=drain reason="$reason"; fi
    done
    until empty; do
      if ((SECONDS >= timeout_s)); then exit 75; fi
      sleep "$poll_s"
    done
    echo "empty: ${nodes[*]}"
    ;;
  verify)
    for node in "${nodes[@]}"; do
      [[ "$(state_of "$node")" == *DRAIN* ]] || fail "$node: takes jobs."
    done
    empty
    echo "not needed, and empty: ${nodes[*]}"
    ;;
  rollback)
    for node in "${nodes[@]}"; do
      if ours "$node"; then scontrol update nodename="$node" state=resume; fi
    done
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
