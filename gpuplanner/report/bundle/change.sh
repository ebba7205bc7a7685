#!/usr/bin/env bash
# MIG layout change planned for @TIME@, board @BOARD@.
#
#   bash FILE check [NODE...]         say what would stop it; changes nothing
#   bash FILE cordon-ahead [NODE...]  keep new pods away from now on
#   bash FILE cancel [NODE...]        let them come again, where nothing is cut yet
#   bash FILE apply [NODE...]         check, cordon, wait for GPU work to end, drain, label, wait, verify, uncordon
#   bash FILE verify [NODE...]        compare each node with the plan; changes nothing
#   bash FILE rollback [NODE...]      give each node back what it had before, with the same steps; also half-way
#
# All nodes are checked before the first is cordoned, and change side by side. A node that has not emptied within
# TIMEOUT_S is given up: uncordoned, as it was; the script then ends with 75. Where cutting fails it ends with 1 and
# leaves that node cordoned. After any stop, run the same words again: what is done is not done twice.
# Before: 'kubectl apply' ConfigMap @CONFIG_MAP@ in namespace @NAMESPACE@, and name it in the ClusterPolicy;
# 'check' prints the command. A node without a label counts as all-disabled, and has that label after a rollback.
#
# Environment: TIMEOUT_S (@TIMEOUT_S@) for nodes to empty, CUT_S (@CUT_S@) for the MIG manager; EVICT=yes evicts GPU work
# that has not ended by then; IF_DUE=yes does nothing unless it is the planned time and not later than TIMEOUT_S after it;
# CHANGE_LOG, where it is written down how long nodes are out of service (gpuplanner/changes.csv in XDG_STATE_HOME);
# CLUSTER_POLICY=none skips the look at the ClusterPolicy; DRAIN_FLAGS (--ignore-daemonsets --delete-emptydir-data)
# for kubectl drain: without the second, it stops at every pod that has scratch space, which goes with the pod.
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" cut_s="${CUT_S:-@CUT_S@}" poll_s="${POLL_S:-5}" evict="${EVICT:-no}"
readonly config_map='@CONFIG_MAP@' namespace='@NAMESPACE@' uncut='all-disabled' times='@TIMES@'
readonly previous='gpuplanner-previous-mig-config' offered='gpuplanner-previous-offers' ours='gpuplanner-cordoned'
read -r -a drain_flags <<<"${DRAIN_FLAGS:---ignore-daemonsets --delete-emptydir-data}"

declare -A config=() offers=() size=() stage=() since=()
@STEPS@

@COMMON@
@KUBERNETES@
check() { # all nodes, before anything is done: what was there must be there to go back to
  local node label policies held faults=''
  held=$(kubectl get configmap "$config_map" --namespace "$namespace" --ignore-not-found \
    -o 'go-template={{index .data "config.yaml"}}' | sed -n "s/^  [\"']\{0,1\}\([A-Za-z0-9._-]*\)[\"']\{0,1\}:.*/\1/p")
  [[ -n "$held" ]] || faults+="ConfigMap $namespace/$config_map is not there, or holds no configuration."$'\n'
  if [[ "${CLUSTER_POLICY:-}" != none ]]; then
    policies=$(kubectl get clusterpolicies.nvidia.com -o \
      'jsonpath={range .items[*]}{.metadata.name} {.spec.migManager.config.name} {.spec.mig.strategy}{end}')
    [[ "$policies" == *" $config_map mixed" ]] || faults+="The ClusterPolicy ('$policies') does not name it: kubectl\
 patch clusterpolicies.nvidia.com ${policies%% *} --type merge --patch '{\"spec\": {\"mig\": {\"strategy\": \"mixed\"},\
 \"migManager\": {\"config\": {\"name\": \"$config_map\"}}}}'"$'\n'
  fi
  for node in "${nodes[@]}"; do
    if [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]]; then
      faults+="$node: is not in this cluster."$'\n'
      continue
    fi
    label=$(label_of "$node" 'mig\.config')
    if [[ -z "$label" && "$(offers_of "$node")" == *nvidia.com/mig-* ]]; then
      faults+="$node: is cut without a label, so nothing could give that back; label it first."$'\n'
    fi
    for label in "${config[$node]}" "${label:-$uncut}"; do
      grep -qxF -- "$label" <<<"$held" ||
        faults+="$node: '$label' is not in $config_map; put that configuration of yours into it, too."$'\n'
    done
  done
  if [[ -n "$faults" ]]; then fail "${faults}Nothing was changed."; fi
}

begin() { # NODE: say where it stands; the same words again go on from there
  local label state
  label=$(label_of "$1" 'mig\.config')
  state=$(label_of "$1" 'mig\.config\.state')
  if [[ "$label" != "${config[$1]}" ]]; then
    cordon "$1"
    stage[$1]=waits
  elif [[ "$state" == success && "$(offers_of "$1")" == "${offers[$1]}" ]]; then
    if [[ -n "$(note_of "$1" "$ours")" ]]; then stage[$1]=cut; fi
    finish "$1"
  else
    cordon "$1"
    stage[$1]=cut since[$1]=$SECONDS
  fi
}

give_up() { # NODE PODS
  uncordon "$1"
  stage[$1]='given up'
  echo "$1: given up after $timeout_s s, still at work: $2. It is as it was; EVICT=yes would have evicted them." >&2
}

cut_node() { # NODE
  kubectl drain "$1" "${drain_flags[@]}" --timeout="${timeout_s}s"
  if [[ "$verb" == apply ]]; then
    note "$1" "$offered=$(offers_of "$1")"
    before=$(label_of "$1" 'mig\.config')
    note "$1" "$previous=${before:-$uncut}"
  fi
  log_change "$1" "${size[$1]}" begin
  # The state of the last change must not be taken for that of this one.
  kubectl label node "$1" --overwrite nvidia.com/mig.config.state- "nvidia.com/mig.config=${config[$1]}"
  stage[$1]=cut since[$1]=$SECONDS
}

look() { # NODE: one step on, if it is time for it
  local pods state found
  if [[ "${stage[$1]}" == waits ]]; then
    pods=$(gpu_pods "$1")
    if [[ -z "$pods" || ("$evict" == yes && SECONDS -ge timeout_s) ]]; then
      cut_node "$1"
    elif ((SECONDS >= timeout_s)); then
      give_up "$1" "$pods"
    fi
  elif [[ "${stage[$1]}" == cut ]]; then
    state=$(label_of "$1" 'mig\.config\.state')
    found=$(offers_of "$1")
    # After a change the device plugin takes a moment to start again.
    if [[ "$state" == success && "$found" == "${offers[$1]}" ]]; then
      finish "$1"
    elif [[ "$state" == failed ]]; then
      stage[$1]=failed
      echo "$1: the MIG manager reports failed; see its log, then roll back. It stays cordoned." >&2
    elif ((SECONDS - since[$1] >= cut_s)); then
      stage[$1]=failed
      echo "$1: after $cut_s s the MIG manager reports '$state', and it offers '$found', not '${offers[$1]}'. It stays" \
        "cordoned; roll back, or run this again." >&2
    fi
  fi
}

finish() { # NODE
  uncordon "$1"
  if [[ "${stage[$1]:-}" == cut ]]; then log_change "$1" "${size[$1]}" end; fi
  if [[ "$verb" == rollback ]]; then
    note "$1" "$previous-"
    note "$1" "$offered-"
  fi
  stage[$1]='is done'
  echo "$1: ${config[$1]}, offers ${offers[$1]:-nothing}"
}

recut() { # all nodes, side by side
  local node
  trap 'echo "Stopped: a command failed. Nothing is undone by itself; run the same words again, or rollback." >&2' EXIT
  for node in "${nodes[@]}"; do begin "$node"; done
  while [[ " ${stage[*]} " =~ \ (waits|cut)\  ]]; do
    for node in "${nodes[@]}"; do look "$node"; done
    if [[ " ${stage[*]} " =~ \ (waits|cut)\  ]]; then sleep "$poll_s"; fi
  done
  trap - EXIT
  if [[ " ${stage[*]} " == *failed* ]]; then exit 1; fi
  if [[ " ${stage[*]} " == *'given up'* ]]; then exit 75; fi
}

compare() { # NODE
  local found state
  found=$(offers_of "$1")
  state=$(label_of "$1" 'mig\.config\.state')
  [[ "$(label_of "$1" 'mig\.config')" == "${config[$1]}" ]] || fail "$1: is not labelled ${config[$1]}."
  [[ "$state" == success ]] || fail "$1: the MIG manager reports '$state'."
  [[ "$found" == "${offers[$1]}" ]] || fail "$1: expected '${offers[$1]}', offers '$found'."
  echo "$1: ${config[$1]}, offers $found"
}

back() { # what each node had before; those that nothing was done to are left out
  local node earlier label kept=()
  for node in "${nodes[@]}"; do
    earlier=$(note_of "$node" "$previous")
    if [[ -z "$earlier" ]]; then
      uncordon "$node"
      echo "$node: nothing was cut, nothing to take back"
    else
      label=$(label_of "$node" 'mig\.config')
      [[ "$label" == "${config[$node]}" || "$label" == "$earlier" ]] ||
        fail "$node: is labelled $label: a later change was made; roll that one back first."
      config[$node]=$earlier offers[$node]=$(note_of "$node" "$offered")
      kept+=("$node")
    fi
  done
  nodes=("${kept[@]}")
}

verb="${1:-}"
case "$verb" in
  check | cordon-ahead | cancel | apply | verify | rollback) shift ;;
  *)
    echo "usage: bash $0 check|cordon-ahead|cancel|apply|verify|rollback [NODE...]" >&2
    exit 2
    ;;
esac
readonly verb all=' @NODES@ '
for node in "$@"; do
  [[ "$all" == *" $node "* ]] || fail "$node: is not part of this change."
done
nodes=("$@")
if ((!$#)); then read -r -a nodes <<<"$all"; fi
leave_unless_due
case "$verb" in
  check)
    check
    echo "nothing stands in the way of: ${nodes[*]}"
    ;;
  cordon-ahead)
    check
    for node in "${nodes[@]}"; do cordon "$node"; done
    ;;
  cancel) for node in "${nodes[@]}"; do uncordon "$node"; done ;;
  apply)
    check
    recut
    ;;
  verify) for node in "${nodes[@]}"; do compare "$node"; done ;;
  rollback)
    back
    if ((${#nodes[@]})); then
      check
      recut
    fi
    ;;
esac
