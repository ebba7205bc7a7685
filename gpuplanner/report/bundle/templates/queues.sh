#!/usr/bin/env bash
# Puts the quotas of this folder in place for the queue managers that the cluster has: Kueue, KAI, Volcano.
#
#   bash FILE apply     queues of the same names are written down first; nodes of nodes.txt get the label of their pool
#   bash FILE verify    say whether the cluster holds them; changes nothing
#   bash FILE rollback  take away what was not there before, and put the rest back
#
# Jobs that are admitted stay so. Environment: STATE (where what was there before is kept).

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state="${STATE:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/gpuplanner/queues}"
readonly here state pool='gpuplanner.io/pool'

@COMMON@
declare -A kinds=(
  [kueue]=clusterqueues.kueue.x-k8s.io,localqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io,topologies.kueue.x-k8s.io
  [kai]=queues.scheduling.run.ai [volcano]=queues.scheduling.volcano.sh
)

managers() { # files whose kinds the cluster knows
  local name
  for name in kai kueue volcano; do
    if kubectl get crd "${kinds[$name]%%,*}" >/dev/null 2>&1; then echo "$name"; fi
  done
}

label_nodes() { # label or take it off
  [[ -e "$here/queue-nodes.txt" ]] || return 0
  local node name
  while read -r node name; do
    if [[ "$1" == on ]]; then
      kubectl label node "$node" --overwrite "$pool=$name" >/dev/null
    else
      kubectl label node "$node" "$pool-" >/dev/null
    fi
  done <"$here/queue-nodes.txt"
}

verb="${1:-}"
found=$(managers)
case "$verb" in
  apply)
    mkdir -p "$state"
    if [[ -n "$found" ]]; then label_nodes on; fi
    for name in $found; do
      if [[ ! -e "$state/$name.yaml" ]]; then
        kubectl get -f "$here/$name.yaml" --ignore-not-found -o yaml |
          sed -e '/^ *resourceVersion:/d' -e '/^ *uid:/d' >"$state/$name.new"
        mv "$state/$name.new" "$state/$name.yaml"
      fi
      kubectl apply -f "$here/$name.yaml"
    done
    echo "quotas: ${found:-no queue manager of these is here}"
    ;;
  verify)
    for name in $found; do
      kubectl diff -f "$here/$name.yaml" >/dev/null || fail "$name: the cluster holds other quotas."
    done
    echo "quotas: ${found:-no queue manager of these is here}"
    ;;
  rollback)
    for name in $found; do
      if [[ ! -e "$state/$name.yaml" ]]; then continue; fi
      # What was there has its own words again, without our label; what still has the label was not there.
      if [[ -s "$state/$name.yaml" ]]; then kubectl replace -f "$state/$name.yaml"; fi
      kubectl delete "${kinds[$name]}" --all-namespaces --selector app.kubernetes.io/managed-by=gpuplanner
      rm "$state/$name.yaml"
    done
    if [[ -n "$found" ]]; then label_nodes off; fi
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
