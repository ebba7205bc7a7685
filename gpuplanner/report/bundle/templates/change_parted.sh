#!/usr/bin/env bash
# Repartitions nodes with nvidia-mig-parted over ssh, GPU model @GPU_MODEL@.
#
#   bash FILE check [NODE...]     list what would stop the change (preflight); changes nothing
#   bash FILE apply [NODE...]     wait until the GPUs of a node have no processes, save its layout, repartition it, verify
#   bash FILE verify [NODE...]    compare each node with the plan; changes nothing
#   bash FILE rollback [NODE...]  restore the MIG layout that each node had before; exit with 1 and change nothing if
#                                 another change bundle repartitioned one of them since
#
# The script does not contact a scheduler: drain the nodes yourself before, and resume them afterwards. A node that still
# has GPU processes after TIMEOUT_S keeps its layout, and the script exits with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@); SSH (ssh); STATE, the folder for earlier layouts (@NAME@.before beside this file).
# MIG instances do not survive a reboot, and this script makes no unit that creates them again: see README.md.

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here state="${STATE:-$here/@NAME@.before}" remote="${SSH:-ssh}"

declare -A config=()
@STEPS@

@FAIL@
parted() { # NODE FILE VERB OPTION...: run mig-parted on the node with a local file
  local node=$1 file=$2
  shift 2
  $remote "$node" nvidia-mig-parted "$1" -f - "${@:2}" <"$file"
}

gpu_processes() { # NODE: process ids on its GPUs
  $remote "$1" nvidia-smi --query-compute-apps=pid --format=csv,noheader </dev/null | paste -s -d ' ' -
}

has_layout() { # NODE FILE CONFIG
  parted "$1" "$2" assert -c "$3" >/dev/null 2>&1
}

repartition_node() { # NODE FILE CONFIG
  local busy deadline=$((SECONDS + timeout_s))
  if has_layout "$1" "$2" "$3"; then
    echo "$1: already as planned"
    return
  fi
  until busy=$(gpu_processes "$1") && [[ -z "$busy" ]]; do
    if ((SECONDS >= deadline)); then
      echo "$1: timed out after $timeout_s s: processes still running: $busy. The node keeps its layout." >&2
      code=75
      return
    fi
    sleep "$poll_s"
  done
  if [[ "$verb" == apply && ! -e "$state/$1.yaml" ]]; then
    mkdir -p "$state"
    $remote "$1" nvidia-mig-parted export -l before </dev/null >"$state/$1.new"
    mv "$state/$1.new" "$state/$1.yaml"
  fi
  touch "$state/$1.unfinished"
  parted "$1" "$2" apply -c "$3"
  has_layout "$1" "$2" "$3" || fail "Fix $1: its MIG layout is not $3."
  rm "$state/$1.unfinished"
  echo "$1: $3"
}

verb="${1:-}"
code=0
if (($#)); then shift; fi
readonly all=' @NODES@ '
for node in "$@"; do
  [[ "$all" == *" $node "* ]] || fail "Fix $node: it is not part of this change. Nodes: $all"
done
nodes=("$@")
if ((!$#)); then read -r -a nodes <<<"$all"; fi
case "$verb" in
  check)
    for node in "${nodes[@]}"; do
      parted "$node" "$here/mig-parted.yaml" assert --valid-config -c "${config[$node]}" >/dev/null ||
        fail "Fix $node: mig-parted there rejects ${config[$node]}."
      echo "$node: running processes: $(gpu_processes "$node")"
    done
    ;;
  apply) for node in "${nodes[@]}"; do repartition_node "$node" "$here/mig-parted.yaml" "${config[$node]}"; done ;;
  verify)
    for node in "${nodes[@]}"; do
      has_layout "$node" "$here/mig-parted.yaml" "${config[$node]}" ||
        fail "Fix $node: its MIG layout is not ${config[$node]}; run 'bash $0 apply'."
      echo "$node: ${config[$node]}"
    done
    ;;
  rollback)
    for node in "${nodes[@]}"; do
      if [[ ! -d "$state" ]] && has_layout "$node" "$here/mig-parted.yaml" "${config[$node]}"; then
        fail "Fix $node: it is repartitioned, but there is no folder $state with saved layouts. Run rollback in the folder\
 where apply ran, or set STATE to its saved layouts. Nothing was changed."
      fi
      # Where this change stopped half way, the node may have any layout.
      [[ ! -e "$state/$node.yaml" || -e "$state/$node.unfinished" ]] ||
        has_layout "$node" "$here/mig-parted.yaml" "${config[$node]}" ||
        has_layout "$node" "$state/$node.yaml" before ||
        fail "Fix $node: its MIG layout is of a later change; roll that one back first. Nothing was changed."
    done
    for node in "${nodes[@]}"; do
      if [[ -e "$state/$node.yaml" ]]; then
        repartition_node "$node" "$state/$node.yaml" before
        if ((!code)); then rm "$state/$node.yaml"; fi
      else
        echo "$node: nothing to roll back"
      fi
    done
    ;;
  *)
    echo "usage: bash $0 check|apply|verify|rollback [NODE...]" >&2
    exit 2
    ;;
esac
exit "$code"
