#!/usr/bin/env bash
# Empties the nodes of released.txt, which are not needed any more.
#
#   bash FILE apply     cordon the nodes, wait until their GPU pods have ended; evicts none
#   bash FILE verify    check that they are cordoned and empty; changes nothing
#   bash FILE rollback  uncordon them
#
# @AFTERWARDS@
# Run it as often as you like: nodes that are not empty after TIMEOUT_S stay cordoned, and the script exits with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" ours='gpuplanner-cordoned'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/released.txt"

@FAIL@
@KUBERNETES@
empty() { # whether no node has GPU pods; prints those that do
  local node pods busy=''
  for node in "${nodes[@]}"; do
    pods=$(gpu_pods "$node")
    if [[ -n "$pods" ]]; then busy+=" $node: $pods."; fi
  done
  if [[ -n "$busy" ]]; then
    echo "GPU pods still running:$busy" >&2
    return 1
  fi
}

verb="${1:-}"
case "$verb" in
  apply)
    for node in "${nodes[@]}"; do cordon "$node"; done
    until empty; do
      if ((SECONDS >= timeout_s)); then exit 75; fi
      sleep "$poll_s"
    done
    echo "empty: ${nodes[*]}"
    ;;
  verify)
    for node in "${nodes[@]}"; do
      [[ "$(kubectl get node "$node" --ignore-not-found -o 'jsonpath={.spec.unschedulable}')" != '' ]] ||
        [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]] || fail "Fix $node: it is not cordoned; run 'bash $0 apply'."
    done
    empty
    echo "cordoned and empty: ${nodes[*]}"
    ;;
  rollback) for node in "${nodes[@]}"; do uncordon "$node"; done ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
