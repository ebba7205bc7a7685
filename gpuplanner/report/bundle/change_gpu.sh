#!/usr/bin/env bash
# MIG layout change for @TIME@, or later; GPU model @GPU_MODEL@; one GPU at a time.
# The other GPUs of the node keep running.
#
#   bash FILE check     list what would stop the change (preflight); changes nothing
#   bash FILE apply     delete old MIG instances as they become idle, create the new ones, restart the device plugin
#   bash FILE verify    compare each GPU with the plan, list what others added; changes nothing
#   bash FILE rollback  create the MIG instances again that each GPU had before, also after a failure
#
# The script waits only for pods on instances that it deletes; pods on other instances and other GPUs keep running. An
# idle instance is deleted at once, so that no new pod takes it: the node is cordoned for that moment, and as long as
# a full GPU that is to be partitioned still has pods. A GPU that still has them after TIMEOUT_S gets its deleted
# instances back, and the script exits with 75. After any stop, run the same command again.
#
# Environment:
#   ON_NODE           (ssh) run as ON_NODE NODE COMMAND..., with the right to change GPUs by nvidia-smi
#   CHECKPOINT        (/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint) where kubelet lists devices by pod
#   PLUGIN            (app=nvidia-device-plugin-daemonset) label of the device plugin's pods
#   PLUGIN_NAMESPACE  (@NAMESPACE@) their namespace
#   TIMEOUT_S         (@TIMEOUT_S@) seconds to wait for GPUs to empty
#   REPARTITION_S     (@REPARTITION_S@) seconds to wait for the device plugin
#   IF_DUE=yes        do nothing unless the planned time has come and is at most TIMEOUT_S ago; report: only print that
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" repartition_s="${REPARTITION_S:-@REPARTITION_S@}"
readonly poll_s="${POLL_S:-5}" times='@TIMES@'
readonly checkpoint="${CHECKPOINT:-/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint}"
readonly plugin="${PLUGIN:-app=nvidia-device-plugin-daemonset}" plugin_namespace="${PLUGIN_NAMESPACE:-@NAMESPACE@}"
readonly ours='gpuplanner-cordoned' record='gpuplanner-@NAME@-gpu' nodes=(@NODES@)

declare -A target=() offers=() stage=()
@STEPS@
mapfile -t units < <(printf '%s\n' "${!target[@]}" | LC_ALL=C sort -V)
readonly units

@COMMON@
@KUBERNETES@
on_node() { # NODE COMMAND...
  ${ON_NODE:-ssh} "$@"
}

instances() { # NODE GPU: id and profile@start of each instance, by start
  local output
  output=$(on_node "$1" nvidia-smi mig -lgi -i "$2" 2>&1) ||
    [[ "$output" == *'No GPU instances found'* || "$output" == *'No MIG-enabled devices found'* ]] ||
    fail "Fix $1: nvidia-smi reports: $output"
  awk '$3 == "MIG" && $7 ~ /^[0-9]+:[0-9]+$/ { split($7, at, ":"); print at[1], $6, $4 "@" at[1] }' <<<"$output" |
    sort -n | awk '{ print $2, $3 }'
}

mode() { # NODE GPU
  on_node "$1" nvidia-smi -i "$2" --query-gpu=mig.mode.current --format=csv,noheader
}

state_of() { # UNIT: its instances as profile@start; "none": MIG enabled, no instance; "full": MIG disabled
  local node=${1%/*} gpu=${1##*/} found
  found=$(mode "$node" "$gpu")
  if [[ "$found" != Enabled ]]; then
    echo full
  else
    found=$(instances "$node" "$gpu" | awk '{ print $2 }' | paste -s -d ' ' -)
    echo "${found:-none}"
  fi
}

pods_by_instance() { # NODE GPU: instance id, or "gpu" if MIG is disabled, and the pod that it is allocated to
  local pods devices table allocated
  pods=$(kubectl get pods --all-namespaces -o \
    'jsonpath={range .items[*]}{.metadata.uid} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed")
  devices=$(on_node "$1" nvidia-smi -L)
  table=$(on_node "$1" nvidia-smi -i "$2")
  allocated=$(on_node "$1" cat "$checkpoint" | sed 's/{"PodUID":"/\n/g' | sed '1d; s/"AllocResp".*//; s/[":,\[\]/ /g')
  {
    sed 's/^/pod /' <<<"$pods"
    sed 's/^/device /' <<<"$devices"
    sed 's/^/table /' <<<"$table"
    sed 's/^/allocated /' <<<"$allocated"
  } | awk -v chosen="$2" '
    $1 == "pod" { pod[$2] = $3 }
    $1 == "device" && $2 == "GPU" { gpu = $3 + 0 }
    $1 == "device" && gpu == chosen && match($0, /UUID: [^)]*/) {
      uuid = substr($0, RSTART + 6, RLENGTH - 6)
      if ($2 == "GPU") number[uuid] = "gpu"
      else { match($0, /Device +[0-9]+/); device[uuid] = substr($0, RSTART + 6, RLENGTH - 6) + 0 }
    }
    # |  GPU  GI   CI  MIG  |
    # |       ID   ID  Dev  |
    $1 == "table" && $2 == "|" && ($3 $4 $5 $6) ~ /^[0-9]+$/ && $3 == chosen { instance[$6 + 0] = $4 }
    $1 == "allocated" && ($2 in pod) {
      for (i = 3; i <= NF; i++) {
        if ($i in number) print number[$i], pod[$2]
        if (($i in device) && (device[$i] in instance)) print instance[device[$i]], pod[$2]
      }
    }' | sort -u
}

check() { # before any change
  local node problems=''
  for node in "${nodes[@]}"; do
    if [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]]; then
      problems+="Node $node not found: check the context of kubectl."$'\n'
    elif ! on_node "$node" nvidia-smi -L >/dev/null; then
      problems+="Fix $node: nvidia-smi does not answer there; set ON_NODE."$'\n'
    elif ! on_node "$node" cat "$checkpoint" >/dev/null; then
      problems+="Fix $node: cannot read the kubelet's list of devices by pod; set CHECKPOINT."$'\n'
    elif [[ -n "$(label_of "$node" 'mig\.config')" && "$(label_of "$node" 'gpu\.deploy\.mig-manager')" != false ]]; then
      problems+="Fix $node: the MIG manager would undo the change when it starts; run kubectl label node $node --overwrite\
 nvidia.com/gpu.deploy.mig-manager=false"$'\n'
    fi
  done
  if [[ -n "$problems" ]]; then fail "${problems}Nothing was changed."; fi
}

later_record() { # UNIT: the record of a later change bundle of this GPU
  kubectl get node "${1%/*}" -o 'jsonpath={.metadata.annotations}' |
    { grep -oE "gpuplanner-change-[0-9TZ]+-gpu-${1##*/}\"" || true; } | tr -d '"' |
    awk -v own="$record-${1##*/}" '$0 > own' | paste -s -d ' ' -
}

delete_idle() { # UNIT: delete idle instances that are not in the target; busy: pods on the others
  local node=${1%/*} gpu=${1##*/} allocated found number place pods
  allocated=$(pods_by_instance "$node" "$gpu")
  found=$(instances "$node" "$gpu")
  while read -r number place; do
    if [[ -z "$number" || " ${target[$1]} " == *" $place "* ]]; then continue; fi
    pods=$(awk -v number="$number" '$1 == number { print $2 }' <<<"$allocated" | paste -s -d ' ' -)
    if [[ -n "$pods" ]]; then
      busy+=" $pods"
    else
      # The compute instances go first, then the GPU instance.
      on_node "$node" nvidia-smi mig -i "$gpu" -gi "$number" -dci >&2
      on_node "$node" nvidia-smi mig -i "$gpu" -gi "$number" -dgi >&2
      touched=yes
    fi
  done <<<"$found"
  if [[ "$was" == full ]]; then busy+=$(awk '$1 == "gpu" { printf " %s", $2 }' <<<"$allocated"); fi
}

create_missing() { # UNIT: once the old instances are deleted
  local node=${1%/*} gpu=${1##*/} present place missing=''
  if [[ "$was" == full ]]; then
    on_node "$node" nvidia-smi -i "$gpu" -mig 1 >&2
  elif [[ "${target[$1]}" == full ]]; then
    on_node "$node" nvidia-smi -i "$gpu" -mig 0 >&2
  fi
  present=$(state_of "$1")
  if [[ "${target[$1]}" == full ]]; then
    [[ "$present" == full ]] || fail "Fix $1: MIG mode is still on; reboot the node, then run the same command again."
    return
  fi
  [[ "$present" != full ]] || fail "Fix $1: MIG mode is still off; reboot the node, then run the same command again."
  for place in ${target[$1]}; do
    if [[ "$place" != none && " $present " != *" $place "* ]]; then missing+="${missing:+,}${place%@*}:${place##*@}"; fi
  done
  if [[ -n "$missing" ]]; then on_node "$node" nvidia-smi mig -i "$gpu" -cgi "$missing" -C >&2; fi
}

step() { # UNIT: take the next step towards its target
  local node=${1%/*} was touched=no
  busy=''
  was=$(state_of "$1")
  if [[ "$was" != "${target[$1]}" ]]; then
    cordon "$node" >&2
    delete_idle "$1"
    if [[ -z "$busy" ]]; then
      create_missing "$1"
      touched=yes
    fi
    if [[ "$touched" == yes ]]; then
      kubectl delete pod --namespace "$plugin_namespace" --selector "$plugin" --field-selector "spec.nodeName=$node" >&2
    fi
  fi
  if [[ -z "$busy" ]]; then stage[$1]=done; fi
  # A full GPU would get a new pod as soon as it is idle: keep the cordon.
  if [[ -z "$busy" || "$was" != full ]]; then uncordon "$node" >&2; fi
}

change_gpus() {
  local unit node code=0 wait_until
  trap 'echo "Stopped: a command failed; nothing was rolled back. Run the same command again, or rollback." >&2' EXIT
  for unit in "${units[@]}"; do stage[$unit]=draining; done
  while [[ " ${stage[*]} " == *' draining '* ]]; do
    for unit in "${units[@]}"; do
      if [[ "${stage[$unit]}" != draining ]]; then continue; fi
      step "$unit"
      if [[ -n "$busy" && $SECONDS -ge $timeout_s ]]; then
        echo "$unit: timed out after $timeout_s s: pods still running:$busy. The GPU gets its instances back." >&2
        target[$unit]=$(note_of "${unit%/*}" "$record-${unit##*/}")
        step "$unit"
        uncordon "${unit%/*}"
        stage[$unit]='timed out' offers[${unit%/*}]='' code=75
      fi
    done
    if [[ " ${stage[*]} " == *' draining '* ]]; then sleep "$poll_s"; fi
  done
  wait_until=$((SECONDS + repartition_s))
  for node in "${nodes[@]}"; do
    until [[ -z "${offers[$node]}" || "$(offers_of "$node")" == "${offers[$node]}" ]]; do
      if ((SECONDS >= wait_until)); then
        echo "Fix $node: it advertises '$(offers_of "$node")'; expected '${offers[$node]}'. Check its device plugin." >&2
        exit 1
      fi
      sleep "$poll_s"
    done
  done
  for unit in "${units[@]}"; do
    if [[ "${stage[$unit]}" == done ]]; then echo "$unit: ${target[$unit]}"; fi
  done
  trap - EXIT
  exit "$code"
}

verb="${1:-}"
[[ $# == 1 && "$verb" =~ ^(check|apply|verify|rollback)$ ]] || {
  echo "usage: bash $0 check|apply|verify|rollback" >&2
  exit 2
}
readonly verb
exit_unless_due
case "$verb" in
  check)
    check
    for unit in "${units[@]}"; do echo "$unit: $(state_of "$unit") -> ${target[$unit]}"; done
    ;;
  apply)
    check
    for unit in "${units[@]}"; do
      if [[ -z "$(note_of "${unit%/*}" "$record-${unit##*/}")" ]]; then
        had=$(state_of "$unit")
        note "${unit%/*}" "$record-${unit##*/}=$had"
      fi
    done
    change_gpus
    ;;
  verify)
    for unit in "${units[@]}"; do
      found=$(state_of "$unit")
      added=$(additions "$found" "${target[$unit]}") || fail "Fix $unit: it has '$found'; expected '${target[$unit]}'."
      echo "$unit: $found${added:+ (added by others: $added)}"
    done
    ;;
  rollback)
    check
    for unit in "${units[@]}"; do
      later=$(later_record "$unit")
      [[ -z "$later" ]] || fail "Fix $unit: $later records a later change; roll that one back first. Nothing was changed."
    done
    for unit in "${units[@]}"; do
      target[$unit]=$(note_of "${unit%/*}" "$record-${unit##*/}")
      offers[${unit%/*}]=''
      if [[ -z "${target[$unit]}" ]]; then target[$unit]=$(state_of "$unit"); fi
    done
    (change_gpus)
    for unit in "${units[@]}"; do
      if [[ -n "$(note_of "${unit%/*}" "$record-${unit##*/}")" ]]; then
        note "${unit%/*}" "$record-${unit##*/}-"
      fi
    done
    ;;
esac
