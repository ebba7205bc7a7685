#!/usr/bin/env bash
# MIG layout change for @TIME@, or later; GPU model @GPU_MODEL@.
#
#   bash FILE check [NODE...]         list what would stop the change (preflight); changes nothing
#   bash FILE cordon-ahead [NODE...]  cordon the nodes now, ahead of the change
#   bash FILE cancel [NODE...]        uncordon the nodes that are not repartitioned yet
#   bash FILE apply [NODE...]         check, cordon, wait for GPU pods to end, drain, label, wait, verify, uncordon
#   bash FILE verify [NODE...]        compare each node with the plan, list what others added; changes nothing
#   bash FILE rollback [NODE...]      restore the MIG configuration that each node had before, also after a failure
#
# All nodes are checked before the first is cordoned, and they change in parallel: name nodes to change fewer at a time.
# Only GPU pods are waited for. A node that still runs some after TIMEOUT_S keeps its layout and is uncordoned; the
# other nodes change, and the script exits with 75. Pods that never end (Deployments, notebooks) need EVICT=yes, or must
# be scaled down. 'kubectl drain' then evicts all other pods of the node; a pod without a controller stops it, and
# PodDisruptionBudgets are honored. If repartitioning fails, the script exits with 1 and leaves that node cordoned.
# After a timeout or a failed command, run the same command again: finished steps are skipped. After the state 'failed' of
# the MIG manager, roll back that node, then apply again: the MIG manager does not retry a label that a node has already.
# Before 'apply': 'bash policy.sh apply' in the folder of this script, which also creates the ConfigMap; 'check' passes
# without it. A node without a MIG label counts as all-disabled, and has that label after a rollback.
#
# Environment:
#   TIMEOUT_S       (@TIMEOUT_S@) seconds to wait for nodes to empty
#   REPARTITION_S   (@REPARTITION_S@) seconds to wait for the MIG manager
#   EVICT=yes       evict GPU pods that still run after TIMEOUT_S
#   KEEP_CORDON=yes keep nodes cordoned after TIMEOUT_S
#   IF_DUE=yes      do nothing unless the planned time has come and is at most TIMEOUT_S ago; report: only print that
#   CHANGE_LOG      CSV file with the time that nodes are out of service (gpuplanner/changes.csv in XDG_STATE_HOME)
#   CHECK_POLICY=no skip the check of the ClusterPolicy
#   DRAIN_FLAGS     (--ignore-daemonsets --delete-emptydir-data) for kubectl drain. Without the second flag, the drain
#                   stops at every pod with an emptyDir volume; with it, the data in that volume is deleted.
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" repartition_s="${REPARTITION_S:-@REPARTITION_S@}"
readonly poll_s="${POLL_S:-5}" evict="${EVICT:-no}"
readonly config_map='@CONFIG_MAP@' namespace='@NAMESPACE@' mig_disabled='all-disabled' times='@TIMES@'
readonly previous='gpuplanner-@NAME@-mig-config' offered='gpuplanner-@NAME@-offers' ours='gpuplanner-cordoned'
here=$(dirname "${BASH_SOURCE[0]}")
readonly here
read -r -a drain_flags <<<"${DRAIN_FLAGS:---ignore-daemonsets --delete-emptydir-data}"

declare -A config=() offers=() size=() stage=() since=() restarted=()
@STEPS@

@COMMON@
@KUBERNETES@
check() { # all nodes, before any change; a rollback needs each node's present configuration in the ConfigMap
  local node label policies configs planned todo='' lacking='' problems=''
  configs=$(kubectl get configmap "$config_map" --namespace "$namespace" --ignore-not-found \
    -o 'go-template={{index .data "config.yaml"}}' | sed -n "s/^  [\"']\{0,1\}\([A-Za-z0-9._-]*\)[\"']\{0,1\}:.*/\1/p")
  if [[ -z "$configs" ]]; then
    todo+="ConfigMap $namespace/$config_map does not exist yet: run 'bash $here/policy.sh apply'"$'\n'
  fi
  planned=$(sed -n "s/^      [\"']\([A-Za-z0-9._-]*\)[\"']:$/\1/p" "$here/configmap.yaml" 2>/dev/null || true)
  planned+=$'\n'$(bash "$here/policy.sh" copied 2>/dev/null || true)
  if [[ "${CHECK_POLICY:-yes}" != no ]]; then
    policies=$(kubectl get clusterpolicies.nvidia.com -o \
      'jsonpath={range .items[*]}{.metadata.name} {.spec.migManager.config.name} {.spec.mig.strategy}{end}')
    [[ "$policies" == *" $config_map mixed" ]] || todo+="ClusterPolicy ('$policies') does not point at\
 $config_map with strategy mixed yet: run 'bash $here/policy.sh apply'"$'\n'
  fi
  for node in "${nodes[@]}"; do
    if [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]]; then
      problems+="Node $node not found: check the context of kubectl."$'\n'
      continue
    fi
    label=$(label_of "$node" 'mig\.config')
    if [[ -z "$label" && "$(offers_of "$node")" == *nvidia.com/mig-* ]]; then
      problems+="Fix $node: it is MIG-partitioned without the label nvidia.com/mig.config, so a rollback could not\
 restore it; label it first."$'\n'
    fi
    for label in "${config[$node]}" "${label:-$mig_disabled}"; do
      if grep -qxF -- "$label" <<<"$configs"; then continue; fi
      if grep -qxF -- "$label" <<<"$planned"; then
        lacking+=" $label"
      else
        problems+="Fix $node: '$label' is not in $config_map, nor in the ConfigMap of the ClusterPolicy; copy your\
 configuration into configmap.yaml."$'\n'
      fi
    done
    if [[ "$verb" == check ]]; then
      kubectl drain "$node" "${drain_flags[@]}" --dry-run=server --timeout=10s 2>&1 >/dev/null |
        { grep -iE 'error|cannot' || true; } | sed "s/^/note: kubectl drain of $node would now stop: /"
    fi
  done
  if [[ -n "$configs" && -n "$lacking" ]]; then
    todo+="ConfigMap $namespace/$config_map lacks configurations yet:$lacking: run 'bash $here/policy.sh apply'"$'\n'
  fi
  if [[ "$verb" == check ]]; then echo -n "$todo"; else problems="$todo$problems"; fi
  if [[ -n "$problems" ]]; then fail "${problems}Nothing was changed."; fi
}

at_target() { # NODE: whether it advertises the plan; once the change is finished, others may have added instances
  local found
  found=$(offers_of "$1")
  [[ "$found" == "${offers[$1]}" ]] || { ! cordoned_by_us "$1" && additions "$found" "${offers[$1]}" >/dev/null; }
}

begin() { # NODE: find its stage; a second run continues from there
  local label state
  label=$(label_of "$1" 'mig\.config')
  state=$(label_of "$1" 'mig\.config\.state')
  if [[ "$label" != "${config[$1]}" ]]; then
    cordon "$1"
    stage[$1]=draining
  elif [[ "$state" == success ]] && at_target "$1"; then
    if cordoned_by_us "$1"; then stage[$1]=partitioning; fi
    finish "$1"
  else
    cordon "$1"
    stage[$1]=partitioning since[$1]=$SECONDS
  fi
}

time_out() { # NODE PODS
  if [[ "${KEEP_CORDON:-no}" != yes ]]; then uncordon "$1"; fi
  stage[$1]='timed out'
  echo "$1: timed out after $timeout_s s: GPU pods still running: $2. The node keeps its layout and" \
    "$([[ "${KEEP_CORDON:-no}" == yes ]] && echo 'stays cordoned' || echo 'is uncordoned'); EVICT=yes evicts them." >&2
}

repartition_node() { # NODE
  kubectl drain "$1" "${drain_flags[@]}" --timeout="${timeout_s}s"
  if [[ "$verb" == apply ]]; then
    note "$1" "$offered=$(offers_of "$1")"
    before=$(label_of "$1" 'mig\.config')
    note "$1" "$previous=${before:-$mig_disabled}"
  fi
  log_change "$1" "${size[$1]}" begin
  # Clear the state of the previous change, so that it is not read as the result of this one.
  kubectl label node "$1" --overwrite nvidia.com/mig.config.state- "nvidia.com/mig.config=${config[$1]}"
  stage[$1]=partitioning since[$1]=$SECONDS
}

advance() { # NODE: take the next step when it is ready
  local pods state found
  if [[ "${stage[$1]}" == draining ]]; then
    pods=$(gpu_pods "$1")
    if [[ -z "$pods" || ("$evict" == yes && SECONDS -ge timeout_s) ]]; then
      repartition_node "$1"
    elif ((SECONDS >= timeout_s)); then
      time_out "$1" "$pods"
    fi
  elif [[ "${stage[$1]}" == partitioning ]]; then
    state=$(label_of "$1" 'mig\.config\.state')
    found=$(offers_of "$1")
    # After a change the device plugin needs a moment to restart.
    if [[ "$state" == success && "$found" == "${offers[$1]}" ]]; then
      finish "$1"
    elif [[ "$state" == success && -z "${restarted[$1]:-}" && -n "$(devices_of "$1")" ]]; then
      # The DRA driver publishes the instances that it finds as it starts.
      restarted[$1]=yes
      kubectl delete pods --all-namespaces --selector dra-driver-nvidia-gpu-component=kubelet-plugin \
        --field-selector "spec.nodeName=$1"
    elif [[ "$state" == failed ]]; then
      stage[$1]=failed
      echo "Fix $1: the MIG manager reports failed; read its log, then run 'bash $0 rollback $1' and" \
        "'bash $0 apply $1'. The node stays cordoned." >&2
    elif ((SECONDS - since[$1] >= repartition_s)); then
      stage[$1]=failed
      echo "Fix $1: after $repartition_s s the MIG manager reports '$state', and it advertises '$found'; expected" \
        "'${offers[$1]}'. The node stays cordoned; run 'bash $0 rollback $1', or the same command again." >&2
    fi
  fi
}

finish() { # NODE
  uncordon "$1"
  if [[ "${stage[$1]:-}" == partitioning ]]; then log_change "$1" "${size[$1]}" end; fi
  if [[ "$verb" == rollback ]]; then
    note "$1" "$previous-"
    note "$1" "$offered-"
  fi
  stage[$1]='is done'
  echo "$1: ${config[$1]}, advertises ${offers[$1]:-nothing}"
}

change_nodes() { # all nodes, in parallel
  local node
  trap 'echo "Stopped: a command failed; nothing was rolled back. Run the same command again, or rollback." >&2' EXIT
  for node in "${nodes[@]}"; do begin "$node"; done
  while [[ " ${stage[*]} " =~ \ (draining|partitioning)\  ]]; do
    for node in "${nodes[@]}"; do advance "$node"; done
    if [[ " ${stage[*]} " =~ \ (draining|partitioning)\  ]]; then sleep "$poll_s"; fi
  done
  trap - EXIT
  if [[ " ${stage[*]} " == *failed* ]]; then exit 1; fi
  if [[ " ${stage[*]} " == *'timed out'* ]]; then exit 75; fi
}

compare() { # NODE
  local added found state
  found=$(offers_of "$1")
  state=$(label_of "$1" 'mig\.config\.state')
  [[ "$(label_of "$1" 'mig\.config')" == "${config[$1]}" ]] || \
    fail "Fix $1: it is not labelled ${config[$1]}; run 'bash $0 apply $1'."
  [[ "$state" == success ]] || fail "Fix $1: the MIG manager reports '$state'; read its log."
  added=$(additions "$found" "${offers[$1]}") ||
    fail "Fix $1: the node advertises '$found'; expected '${offers[$1]}'."
  echo "$1: ${config[$1]}, advertises $found${added:+ (added by others: $added)}"
}

plan_rollback() { # the earlier configuration of each node becomes its target; unchanged nodes are left out
  local node earlier label changed=()
  for node in "${nodes[@]}"; do
    earlier=$(note_of "$node" "$previous")
    if [[ -z "$earlier" ]]; then
      uncordon "$node"
      echo "$node: not repartitioned, nothing to roll back"
    else
      label=$(label_of "$node" 'mig\.config')
      [[ "$label" == "${config[$node]}" || "$label" == "$earlier" ]] ||
        fail "Fix $node: it is labelled $label by a later change; roll that one back first."
      config[$node]=$earlier offers[$node]=$(note_of "$node" "$offered")
      changed+=("$node")
    fi
  done
  nodes=("${changed[@]}")
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
  [[ "$all" == *" $node "* ]] || fail "Fix $node: it is not part of this change. Nodes: $all"
done
nodes=("$@")
if ((!$#)); then read -r -a nodes <<<"$all"; fi
exit_unless_due
case "$verb" in
  check)
    check
    echo "ready to change: ${nodes[*]}"
    ;;
  cordon-ahead)
    check
    for node in "${nodes[@]}"; do cordon "$node"; done
    ;;
  cancel) for node in "${nodes[@]}"; do uncordon "$node"; done ;;
  apply)
    check
    change_nodes
    ;;
  verify) for node in "${nodes[@]}"; do compare "$node"; done ;;
  rollback)
    plan_rollback
    if ((${#nodes[@]})); then
      check
      change_nodes
    fi
    ;;
esac
