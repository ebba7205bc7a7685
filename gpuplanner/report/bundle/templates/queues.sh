#!/usr/bin/env bash
# Applies the quotas of this folder to the queue managers of the cluster: Kueue, KAI, Volcano.
#
#   bash FILE apply     save queues with the same names, apply the quotas, label the nodes of queue-nodes.txt
#   bash FILE verify    compare the quotas of the cluster with these files; changes nothing
#   bash FILE rollback  delete the new queues and restore those that were there before the first change bundle; exit with 1
#                       and change nothing if another bundle set the quotas since
#
# Admitted jobs keep running. Environment: STATE (folder for the saved queues).

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state="${STATE:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/gpuplanner/queues}"
readonly here state pool='gpuplanner.io/pool'

@FAIL@
declare -A kinds=(
  [kueue]=clusterqueues.kueue.x-k8s.io,localqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io,topologies.kueue.x-k8s.io
  [kai]=queues.scheduling.run.ai [volcano]=queues.scheduling.volcano.sh
)

managers() { # queue managers whose resource definitions the cluster has
  local name
  for name in kai kueue volcano; do
    if kubectl get crd "${kinds[$name]%%,*}" >/dev/null 2>&1; then echo "$name"; fi
  done
}

label_nodes() { # on or off
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
      cksum <"$here/$name.yaml" >"$state/$name.applied"
      kubectl apply -f "$here/$name.yaml"
    done
    echo "quotas applied: ${found:-none; the cluster has no Kueue, KAI or Volcano}"
    ;;
  verify)
    for name in $found; do
      kubectl diff -f "$here/$name.yaml" >/dev/null || fail "Fix $name: the cluster has other quotas; run 'bash $0 apply'."
    done
    echo "quotas applied: ${found:-none; the cluster has no Kueue, KAI or Volcano}"
    ;;
  rollback)
    for name in $found; do
      [[ ! -e "$state/$name.yaml" || "$(cksum <"$here/$name.yaml")" == "$(cat "$state/$name.applied")" ]] ||
        fail "Fix $name: another change bundle set the quotas; roll back there. Nothing was changed."
    done
    for name in $found; do
      if [[ ! -e "$state/$name.yaml" ]]; then continue; fi
      # Saved queues are restored without our label; queues that still have the label are new and are deleted.
      if [[ -s "$state/$name.yaml" ]]; then kubectl replace -f "$state/$name.yaml"; fi
      kubectl delete "${kinds[$name]}" --all-namespaces --selector app.kubernetes.io/managed-by=gpuplanner
      rm "$state/$name.yaml" "$state/$name.applied"
    done
    if [[ -n "$found" ]]; then label_nodes off; fi
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
