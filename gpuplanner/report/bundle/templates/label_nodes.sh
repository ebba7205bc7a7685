#!/usr/bin/env bash
# Lets the DRA driver cut the GPUs of the nodes in nodes.txt, and nobody else.
#
#   bash FILE apply     label them; the operator's own cutting leaves them alone
#   bash FILE verify    say whether the driver offers their GPUs; changes nothing
#   bash FILE rollback  take the label off
#
# The device plugin must not hand out the same GPUs: switch it off where this label is (ClusterPolicy devicePlugin, or
# its node selector).

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t nodes <"$here/nodes.txt"
readonly pool='gpuplanner.io/pool'

@COMMON@
case "${1:-}" in
  apply)
    for node in "${nodes[@]}"; do kubectl label node "$node" --overwrite "$pool=jobs"; done
    ;;
  verify)
    for node in "${nodes[@]}"; do
      [[ "$(kubectl get node "$node" -o 'jsonpath={.metadata.labels.gpuplanner\.io/pool}')" == jobs ]] ||
        fail "$node: is not labelled."
      [[ -n "$(kubectl get resourceslices --field-selector "spec.nodeName=$node,spec.driver=gpu.nvidia.com" -o name)" ]] ||
        fail "$node: the driver offers nothing there yet."
    done
    echo "the driver cuts: ${nodes[*]}"
    ;;
  rollback)
    for node in "${nodes[@]}"; do kubectl label node "$node" "$pool-"; done
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
