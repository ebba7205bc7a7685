#!/usr/bin/env bash
# MIG layout change planned for @TIME@, board @BOARD@: one GPU at a time, while the rest of its node stays at work.
#
#   bash FILE check     say what would stop it; changes nothing
#   bash FILE apply     take away what goes as soon as it is free, make what comes, let the device plugin look again
#   bash FILE verify    compare each GPU with the plan; changes nothing
#   bash FILE rollback  make the instances again that each GPU had; also half-way
#
# Only pods on instances that go are waited for; those on instances that stay, and on other GPUs, are not touched. What
# is free and goes is removed at once, so that nobody takes it again: the node is cordoned for that moment, and for as
# long as a whole GPU that is to be cut is still at work. A GPU that has not emptied within TIMEOUT_S is given up: it
# gets back what was taken away, and the script ends with 75. After any stop, run the same words again.
#
# Environment: ON_NODE (ssh), run as ON_NODE NODE COMMAND..., where nvidia-smi may change GPUs; CHECKPOINT
# (/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint), where kubelet notes which pod holds which device; PLUGIN
# (app=nvidia-device-plugin-daemonset) and PLUGIN_NAMESPACE (@NAMESPACE@) of the device plugin; TIMEOUT_S (@TIMEOUT_S@)
# for GPUs to empty, CUT_S (@CUT_S@) for the plugin; IF_DUE=yes does nothing unless it is the planned time and not later
# than TIMEOUT_S after it.
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" cut_s="${CUT_S:-@CUT_S@}" poll_s="${POLL_S:-5}" times='@TIMES@'
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

instances() { # NODE GPU: number and profile@start of each instance, in the order of their places
  local said
  said=$(on_node "$1" nvidia-smi mig -lgi -i "$2" 2>&1) ||
    [[ "$said" == *'No GPU instances found'* || "$said" == *'No MIG-enabled devices found'* ]] || fail "$1: $said"
  awk '$3 == "MIG" && $7 ~ /^[0-9]+:[0-9]+$/ { split($7, at, ":"); print at[1], $6, $4 "@" at[1] }' <<<"$said" |
    sort -n | cut -d ' ' -f 2-
}

mode() { # NODE GPU
  on_node "$1" nvidia-smi -i "$2" --query-gpu=mig.mode.current --format=csv,noheader
}

state_of() { # UNIT: places of its instances, or "none", or "whole" where MIG mode is off
  local node=${1%/*} gpu=${1##*/} found
  found=$(mode "$node" "$gpu")
  if [[ "$found" != Enabled ]]; then
    echo whole
  else
    found=$(instances "$node" "$gpu" | cut -s -d ' ' -f 2 | paste -s -d ' ' -)
    echo "${found:-none}"
  fi
}

holders() { # NODE GPU: what running pods hold of it: number of the instance, or "gpu" if it is not cut, and the pod
  local pods devices table held
  pods=$(kubectl get pods --all-namespaces -o \
    'jsonpath={range .items[*]}{.metadata.uid} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed")
  devices=$(on_node "$1" nvidia-smi -L)
  table=$(on_node "$1" nvidia-smi -i "$2")
  held=$(on_node "$1" cat "$checkpoint" | sed 's/{"PodUID":"/\n/g' | sed '1d; s/"AllocResp".*//; s/[":,\[\]/ /g')
  {
    sed 's/^/pod /' <<<"$pods"
    sed 's/^/device /' <<<"$devices"
    sed 's/^/table /' <<<"$table"
    sed 's/^/held /' <<<"$held"
  } | awk -v wanted="$2" '
    $1 == "pod" { pod[$2] = $3 }
    $1 == "device" && $2 == "GPU" { gpu = $3 + 0 }
    $1 == "device" && gpu == wanted && match($0, /UUID: [^)]*/) {
      uuid = substr($0, RSTART + 6, RLENGTH - 6)
      if ($2 == "GPU") number[uuid] = "gpu"
      else { match($0, /Device +[0-9]+/); device[uuid] = substr($0, RSTART + 6, RLENGTH - 6) + 0 }
    }
    # |  GPU  GI   CI  MIG  |
    # |       ID   ID  Dev  |
    $1 == "table" && $2 == "|" && ($3 $4 $5 $6) ~ /^[0-9]+$/ && $3 == wanted { instance[$6 + 0] = $4 }
    $1 == "held" && ($2 in pod) {
      for (i = 3; i <= NF; i++) {
        if ($i in number) print number[$i], pod[$2]
        if (($i in device) && (device[$i] in instance)) print instance[device[$i]], pod[$2]
      }
    }' | sort -u
}

check() { # before anything is done
  local node faults=''
  for node in "${nodes[@]}"; do
    if [[ -z "$(kubectl get node "$node" --ignore-not-found -o name)" ]]; then
      faults+="$node: is not in this cluster."$'\n'
    elif ! on_node "$node" nvidia-smi -L >/dev/null; then
      faults+="$node: nvidia-smi does not answer there; see ON_NODE."$'\n'
    elif ! on_node "$node" cat "$checkpoint" >/dev/null; then
      faults+="$node: who holds which device cannot be read there; see CHECKPOINT."$'\n'
    elif [[ -n "$(label_of "$node" 'mig\.config')" && "$(label_of "$node" 'gpu\.deploy\.mig-manager')" != false ]]; then
      faults+="$node: the MIG manager would undo this when it starts; first: kubectl label node $node --overwrite\
 nvidia.com/gpu.deploy.mig-manager=false"$'\n'
    fi
  done
  if [[ -n "$faults" ]]; then fail "${faults}Nothing was changed."; fi
}

remove_free() { # UNIT: sets busy to the pods on what else has to go
  local node=${1%/*} gpu=${1##*/} held found number place pods
  held=$(holders "$node" "$gpu")
  found=$(instances "$node" "$gpu")
  while read -r number place; do
    if [[ -z "$number" || " ${target[$1]} " == *" $place "* ]]; then continue; fi
    pods=$(awk -v number="$number" '$1 == number { print $2 }' <<<"$held" | paste -s -d ' ' -)
    if [[ -n "$pods" ]]; then
      busy+=" $pods"
    else
      # A GPU instance goes after the compute instances on it.
      on_node "$node" nvidia-smi mig -i "$gpu" -gi "$number" -dci >&2
      on_node "$node" nvidia-smi mig -i "$gpu" -gi "$number" -dgi >&2
      touched=yes
    fi
  done <<<"$found"
  if [[ "$was" == whole ]]; then busy+=$(awk '$1 == "gpu" { printf " %s", $2 }' <<<"$held"); fi
}

make_missing() { # UNIT: all that goes has gone
  local node=${1%/*} gpu=${1##*/} there place missing=''
  if [[ "$was" == whole ]]; then
    on_node "$node" nvidia-smi -i "$gpu" -mig 1 >&2
  elif [[ "${target[$1]}" == whole ]]; then
    on_node "$node" nvidia-smi -i "$gpu" -mig 0 >&2
  fi
  there=$(state_of "$1")
  if [[ "${target[$1]}" == whole ]]; then
    [[ "$there" == whole ]] || fail "$1: MIG mode is still on: the node needs a reboot; run the same words again then."
    return
  fi
  [[ "$there" != whole ]] || fail "$1: MIG mode is still off: the node needs a reboot; run the same words again then."
  for place in ${target[$1]}; do
    if [[ "$place" != none && " $there " != *" $place "* ]]; then missing+="${missing:+,}${place%@*}:${place##*@}"; fi
  done
  if [[ -n "$missing" ]]; then on_node "$node" nvidia-smi mig -i "$gpu" -cgi "$missing" -C >&2; fi
}

step() { # UNIT: one step on towards its target
  local node=${1%/*} was touched=no
  busy=''
  was=$(state_of "$1")
  if [[ "$was" != "${target[$1]}" ]]; then
    cordon "$node" >&2
    remove_free "$1"
    if [[ -z "$busy" ]]; then
      make_missing "$1"
      touched=yes
    fi
    if [[ "$touched" == yes ]]; then
      kubectl delete pod --namespace "$plugin_namespace" --selector "$plugin" --field-selector "spec.nodeName=$node" >&2
    fi
  fi
  if [[ -z "$busy" ]]; then stage[$1]=done; fi
  # What is whole would be taken again as soon as it is free.
  if [[ -z "$busy" || "$was" != whole ]]; then uncordon "$node" >&2; fi
}

recut() {
  local unit node code=0 wait_until
  trap 'echo "Stopped: a command failed. Nothing is undone by itself; run the same words again, or rollback." >&2' EXIT
  for unit in "${units[@]}"; do stage[$unit]=waits; done
  while [[ " ${stage[*]} " == *' waits '* ]]; do
    for unit in "${units[@]}"; do
      if [[ "${stage[$unit]}" != waits ]]; then continue; fi
      step "$unit"
      if [[ -n "$busy" && $SECONDS -ge $timeout_s ]]; then
        echo "$unit: given up after $timeout_s s, still at work:$busy. It gets back what it had." >&2
        target[$unit]=$(note_of "${unit%/*}" "$record-${unit##*/}")
        step "$unit"
        uncordon "${unit%/*}"
        stage[$unit]='given up' offers[${unit%/*}]='' code=75
      fi
    done
    if [[ " ${stage[*]} " == *' waits '* ]]; then sleep "$poll_s"; fi
  done
  wait_until=$((SECONDS + cut_s))
  for node in "${nodes[@]}"; do
    until [[ -z "${offers[$node]}" || "$(offers_of "$node")" == "${offers[$node]}" ]]; do
      if ((SECONDS >= wait_until)); then
        echo "$node: expected '${offers[$node]}', offers '$(offers_of "$node")': see its device plugin." >&2
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
leave_unless_due
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
    recut
    ;;
  verify)
    for unit in "${units[@]}"; do
      found=$(state_of "$unit")
      [[ "$found" == "${target[$unit]}" ]] || fail "$unit: expected '${target[$unit]}', has '$found'."
      echo "$unit: $found"
    done
    ;;
  rollback)
    check
    for unit in "${units[@]}"; do
      target[$unit]=$(note_of "${unit%/*}" "$record-${unit##*/}")
      offers[${unit%/*}]=''
      if [[ -z "${target[$unit]}" ]]; then target[$unit]=$(state_of "$unit"); fi
    done
    (recut)
    for unit in "${units[@]}"; do
      if [[ -n "$(note_of "${unit%/*}" "$record-${unit##*/}")" ]]; then
        note "${unit%/*}" "$record-${unit##*/}-"
      fi
    done
    ;;
esac
