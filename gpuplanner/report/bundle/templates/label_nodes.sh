#!/usr/bin/env bash
# Labels the nodes of nodes.txt, so that the DRA driver alone partitions their GPUs.
#
#   bash FILE apply     label the nodes; the MIG manager skips them
#   bash FILE verify    check that the driver publishes their GPUs; changes nothing
#   bash FILE rollback  remove the label
#
# The device plugin must not advertise the same GPUs: disable it on nodes with this label (ClusterPolicy devicePlugin, or
# its node selector).

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/nodes.txt"
readonly pool='gpuplanner.io/pool'

@FAIL@
case "${1:-}" in
  apply)
    for node in "${nodes[@]}"; do kubectl label node "$node" --overwrite "$pool=jobs"; done
    ;;
  verify)
    for node in "${nodes[@]}"; do
      [[ "$(kubectl get node "$node" -o 'jsonpath={.metadata.labels.gpuplanner\.io/pool}')" == jobs ]] ||
        fail "Fix $node: it is not labelled; run 'bash $0 apply'."
      [[ -n "$(kubectl get resourceslices --field-selector "spec.nodeName=$node,spec.driver=gpu.nvidia.com" -o name)" ]] ||
        fail "Fix $node: the driver publishes no GPUs there yet."
    done
    echo "partitioned by the DRA driver: ${nodes[*]}"
    ;;
  rollback)
    for node in "${nodes[@]}"; do kubectl label node "$node" "$pool-"; done
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
