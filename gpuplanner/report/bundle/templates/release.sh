#!/usr/bin/env bash
# Empties the nodes of released.txt, which are not needed, and keeps work away from them.
#
#   bash FILE apply     cordon, wait until the GPU work there has ended; evicts nothing
#   bash FILE verify    say whether they are empty and stay so; changes nothing
#   bash FILE rollback  let work come again
#
# @AFTERWARDS@
# Apply it as often as you like: what has not emptied within TIMEOUT_S stays cordoned, and the script ends with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" ours='gpuplanner-cordoned'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/released.txt"

@COMMON@
@KUBERNETES@
empty() { # whether nothing works on any of them; says what does
  local node pods busy=''
  for node in "${nodes[@]}"; do
    pods=$(gpu_pods "$node")
    if [[ -n "$pods" ]]; then busy+=" $node: $pods."; fi
  done
  if [[ -n "$busy" ]]; then
    echo "Still at work:$busy" >&2
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
        [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]] || fail "$node: takes work."
    done
    empty
    echo "not needed, and empty: ${nodes[*]}"
    ;;
  rollback) for node in "${nodes[@]}"; do uncordon "$node"; done ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
