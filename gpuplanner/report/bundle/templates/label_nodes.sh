#!/usr/bin/env bash
# Empties and labels the nodes of nodes.txt, so that the DRA driver alone partitions their GPUs.
#
#   bash FILE apply     cordon the nodes, wait until their GPU pods have ended, label them; evicts none
#   bash FILE uncordon  uncordon them, once the driver has started
#   bash FILE verify    check that the driver publishes their GPUs; changes nothing
#   bash FILE rollback  empty them again, remove the label, uncordon them
#
# As it starts with dynamic MIG, the driver removes MIG instances that no claim has made, so no pod may use one then.
# Nodes that are not empty after TIMEOUT_S stay cordoned, and the script exits with 75: run the same command again.
# The device plugin must not advertise the same GPUs: disable it on nodes with this label (ClusterPolicy devicePlugin, or
# its node selector).
# Environment: TIMEOUT_S (@TIMEOUT_S@).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" ours='gpuplanner-cordoned'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/nodes.txt"
readonly pool='gpuplanner.io/pool'

@FAIL@
@KUBERNETES@
empty() { # NODE: cordon it, and wait until it has no GPU pods
  local pods
  cordon "$1"
  until pods=$(gpu_pods "$1") && [[ -z "$pods" ]]; do
    if ((SECONDS >= timeout_s)); then
      echo "GPU pods still running on $1: $pods" >&2
      exit 75
    fi
    sleep "$poll_s"
  done
}

label_of_pool() { # NODE
  kubectl get node "$1" -o 'jsonpath={.metadata.labels.gpuplanner\.io/pool}'
}

case "${1:-}" in
  apply)
    for node in "${nodes[@]}"; do
      if [[ "$(label_of_pool "$node")" != jobs ]]; then empty "$node"; fi
      kubectl label node "$node" --overwrite "$pool=jobs"
    done
    ;;
  uncordon) for node in "${nodes[@]}"; do uncordon "$node"; done ;;
  verify)
    for node in "${nodes[@]}"; do
      [[ "$(label_of_pool "$node")" == jobs ]] || fail "Fix $node: it is not labelled; run 'bash $0 apply'."
      [[ -n "$(kubectl get resourceslices --field-selector "spec.nodeName=$node,spec.driver=gpu.nvidia.com" -o name)" ]] ||
        fail "Fix $node: the driver publishes no GPUs there yet."
    done
    echo "partitioned by the DRA driver: ${nodes[*]}"
    ;;
  rollback)
    for node in "${nodes[@]}"; do
      empty "$node"
      kubectl label node "$node" "$pool-"
      uncordon "$node"
    done
    ;;
  *)
    echo "usage: bash $0 apply|uncordon|verify|rollback" >&2
    exit 2
    ;;
esac
