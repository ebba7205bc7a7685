#!/usr/bin/env bash
# MIG layout change planned for @TIME@, board @BOARD@.
#
#   bash FILE apply [NODE...]     cordon, wait for GPU work to end, drain, label, wait, verify, uncordon
#   bash FILE verify [NODE...]    compare each node with the plan; changes nothing
#   bash FILE rollback [NODE...]  give each node the label it had before, with the same steps
#
# Nodes are treated one after another. The script stops at the first fault and leaves that node cordoned.
# Before: apply ConfigMap @CONFIG_MAP@ in namespace @NAMESPACE@, name it in the ClusterPolicy
# (spec.migManager.config.name), and set spec.mig.strategy to mixed.
# On a node itself: nvidia-mig-parted assert -f config.yaml -c CONFIG
#
# Environment: TIMEOUT_S (@TIMEOUT_S@) for each wait; EVICT=yes evicts GPU work that has not ended by then;
# DRAIN_FLAGS (--ignore-daemonsets --delete-emptydir-data) for kubectl drain: without the second, it stops at every
# pod that has scratch space of its own, which goes with the pod.
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}" evict="${EVICT:-no}"
readonly record='gpuplanner-previous-mig-config'
read -r -a drain_flags <<<"${DRAIN_FLAGS:---ignore-daemonsets --delete-emptydir-data}"

each_node() {
@STEPS@
}

fail() {
  echo "$1" >&2
  exit 1
}

label_of() { # NODE KEY
  kubectl get node "$1" -o "jsonpath={.metadata.labels.nvidia\.com/$2}"
}

offers() { # NODE: GPU resources that can be allocated, in a fixed order
  local template='{{range $key, $value := .status.allocatable}}{{$key}}={{$value}}{{"\n"}}{{end}}'
  kubectl get node "$1" -o "go-template=$template" |
    { grep -E '^nvidia\.com/(gpu|mig-[^=]*)=[1-9]' || true; } | LC_ALL=C sort | paste -s -d ' ' -
}

gpu_pods() { # NODE: pods there that hold a GPU or an instance, or a claim that may be for one
  local template='{{range .items}}{{$name := printf "%s/%s" .metadata.namespace .metadata.name}}'
  template+='{{range .spec.resourceClaims}}{{$name}} claim{{"\n"}}{{end}}'
  local containers
  for containers in containers initContainers; do
    template+="{{range .spec.$containers}}"
    template+='{{if .resources.limits}}{{range $key, $value := .resources.limits}}'
    template+='{{$name}} {{$key}}{{"\n"}}{{end}}{{end}}{{end}}'
  done
  template+='{{end}}'
  kubectl get pods --all-namespaces -o "go-template=$template" \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed" |
    { grep -E ' (nvidia\.com/(gpu|mig-)|claim$)' || true; } | cut -d ' ' -f 1 | LC_ALL=C sort -u | paste -s -d ' ' -
}

wait_for_work() { # NODE
  local pods deadline=$((SECONDS + timeout_s))
  while true; do
    pods=$(gpu_pods "$1")
    if [[ -z "$pods" ]]; then return; fi
    if ((SECONDS >= deadline)); then
      if [[ "$evict" == yes ]]; then return; fi
      fail "$1: still at work: $pods. Wait longer, or allow eviction with EVICT=yes."
    fi
    sleep "$poll_s"
  done
}

wait_for_manager() { # NODE
  local state deadline=$((SECONDS + timeout_s))
  while true; do
    state=$(label_of "$1" 'mig\.config\.state')
    if [[ "$state" == success ]]; then return; fi
    if [[ "$state" == failed ]]; then
      fail "$1: the MIG manager reports failed; see its log, then roll back."
    fi
    if ((SECONDS >= deadline)); then fail "$1: the MIG manager reports '$state' after $timeout_s s."; fi
    sleep "$poll_s"
  done
}

compare() { # NODE CONFIG OFFERS; without OFFERS only label and state are compared
  local found deadline=$((SECONDS + timeout_s))
  [[ "$(label_of "$1" 'mig\.config')" == "$2" ]] || fail "$1: is not labelled $2."
  [[ "$(label_of "$1" 'mig\.config\.state')" == success ]] || fail "$1: the MIG manager has not reported success."
  while true; do
    found=$(offers "$1")
    if [[ -z "$3" || "$found" == "$3" ]]; then break; fi
    # After a change the device plugin takes a moment to start again.
    if [[ "$verb" != apply ]] || ((SECONDS >= deadline)); then fail "$1: expected '$3', offers '$found'."; fi
    sleep "$poll_s"
  done
  echo "$1: $2, offers $found"
}

recut() { # NODE CONFIG OFFERS
  local before
  kubectl cordon "$1"
  before=$(label_of "$1" 'mig\.config')
  if [[ "$before" != "$2" ]]; then
    wait_for_work "$1"
    kubectl drain "$1" "${drain_flags[@]}" --timeout="${timeout_s}s"
    kubectl annotate node "$1" --overwrite "$record=$before"
    # The state of the last change must not be taken for that of this one.
    kubectl label node "$1" nvidia.com/mig.config.state-
    kubectl label node "$1" --overwrite "nvidia.com/mig.config=$2"
  fi
  wait_for_manager "$1"
  compare "$1" "$2" "$3"
  kubectl uncordon "$1"
}

change() { # NODE CONFIG OFFERS, as planned
  local previous
  if ((chosen_count)) && [[ "$chosen" != *" $1 "* ]]; then return; fi
  case "$verb" in
    apply) recut "$1" "$2" "$3" ;;
    verify) compare "$1" "$2" "$3" ;;
    rollback)
      previous=$(kubectl get node "$1" -o "jsonpath={.metadata.annotations.$record}")
      [[ -n "$previous" ]] || fail "$1: no earlier label is on record."
      recut "$1" "$previous" ''
      ;;
  esac
}

verb="${1:-}"
case "$verb" in
  apply | verify | rollback) shift ;;
  *)
    echo "usage: bash $0 apply|verify|rollback [NODE...]" >&2
    exit 2
    ;;
esac
readonly verb chosen_count=$# chosen=" $* " all=' @NODES@ '
for node in "$@"; do
  [[ "$all" == *" $node "* ]] || fail "$node: is not part of this change."
done
each_node
