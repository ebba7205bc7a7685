#!/usr/bin/env bash
# Empties the nodes of released.txt, which are not needed any more.
#
#   bash FILE apply     drain the nodes, wait until their jobs have ended; cancels none
#   bash FILE verify    check that they are drained and empty; changes nothing
#   bash FILE rollback  resume them
#
# @AFTERWARDS@
# Run it as often as you like: nodes that are not empty after TIMEOUT_S stay drained, and the script exits with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" reason='gpuplanner: not needed'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/released.txt"
list=$(IFS=,; echo "${nodes[*]}")

@FAIL@
state_of() { # NODE
  scontrol show node "$1" | awk '{ for (i = 1; i <= NF; i++) if (index($i, "State=") == 1) print substr($i, 7) }'
}

ours() { # NODE: whether we drained it
  scontrol show node "$1" | grep -qF "Reason=$reason"
}

empty() { # whether no node has jobs; prints those that run
  local jobs
  jobs=$(squeue --noheader --nodelist="$list" --format=%A | paste -s -d ' ' -)
  if [[ -n "$jobs" ]]; then
    echo "Jobs still running: $jobs" >&2
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
      [[ "$(state_of "$node")" == *DRAIN* ]] || fail "Fix $node: it is not drained; run 'bash $0 apply'."
    done
    empty
    echo "drained and empty: ${nodes[*]}"
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
