#!/usr/bin/env bash
# Cuts nodes by nvidia-mig-parted over ssh, board @BOARD@.
#
#   bash FILE check     say what would stop it; changes nothing
#   bash FILE apply     wait until no process is on the GPUs of a node, write down what it has, cut, compare
#   bash FILE verify    compare each node with the plan; changes nothing
#   bash FILE rollback  give each node back what it had
#
# No scheduler is asked: keep work away from the nodes yourself before, and let it come again afterwards. What has not
# emptied within TIMEOUT_S is left as it was, and the script ends with 75.
# Environment: TIMEOUT_S (@TIMEOUT_S@); SSH (ssh); STATE, where is written down what there was (change.before here).

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" poll_s="${POLL_S:-5}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here state="${STATE:-$here/change.before}" remote="${SSH:-ssh}"

declare -A config=()
@STEPS@

@COMMON@
parted() { # NODE FILE VERB WORD...: mig-parted there, with a file from here
  local node=$1 file=$2
  shift 2
  $remote "$node" nvidia-mig-parted "$1" -f - "${@:2}" <"$file"
}

at_work() { # NODE: processes on its GPUs
  $remote "$1" nvidia-smi --query-compute-apps=pid --format=csv,noheader </dev/null | paste -s -d ' ' -
}

is_so() { # NODE FILE CONFIG
  parted "$1" "$2" assert -c "$3" >/dev/null 2>&1
}

cut_node() { # NODE FILE CONFIG
  local busy deadline=$((SECONDS + timeout_s))
  if is_so "$1" "$2" "$3"; then
    echo "$1: is so already"
    return
  fi
  until busy=$(at_work "$1") && [[ -z "$busy" ]]; do
    if ((SECONDS >= deadline)); then
      echo "$1: given up, still at work: $busy" >&2
      late=75
      return
    fi
    sleep "$poll_s"
  done
  if [[ "$verb" == apply && ! -e "$state/$1.yaml" ]]; then
    mkdir -p "$state"
    $remote "$1" nvidia-mig-parted export -l before </dev/null >"$state/$1.new"
    mv "$state/$1.new" "$state/$1.yaml"
  fi
  parted "$1" "$2" apply -c "$3"
  is_so "$1" "$2" "$3" || fail "$1: is not cut as $3."
  echo "$1: $3"
}

verb="${1:-}"
late=0
nodes=(@NODES@)
case "$verb" in
  check)
    for node in "${nodes[@]}"; do
      parted "$node" "$here/mig-parted.yaml" assert --valid-config -c "${config[$node]}" >/dev/null ||
        fail "$node: mig-parted there does not take ${config[$node]}."
      echo "$node: at work: $(at_work "$node")"
    done
    ;;
  apply) for node in "${nodes[@]}"; do cut_node "$node" "$here/mig-parted.yaml" "${config[$node]}"; done ;;
  verify)
    for node in "${nodes[@]}"; do
      is_so "$node" "$here/mig-parted.yaml" "${config[$node]}" || fail "$node: is not cut as ${config[$node]}."
      echo "$node: ${config[$node]}"
    done
    ;;
  rollback)
    for node in "${nodes[@]}"; do
      if [[ -e "$state/$node.yaml" ]]; then
        cut_node "$node" "$state/$node.yaml" before
        if ((!late)); then rm "$state/$node.yaml"; fi
      else
        echo "$node: nothing to take back"
      fi
    done
    ;;
  *)
    echo "usage: bash $0 check|apply|verify|rollback" >&2
    exit 2
    ;;
esac
exit "$late"
