#!/usr/bin/env bash
# gres.conf of this node, for Slurm builds without NVML (AutoDetect=nvml is then of no use).
#
#   bash static-gres.sh [TYPE] >gres.conf     after every cut, on the node itself
#
# TYPE is the type of a whole GPU in slurm.conf (@TYPE@); an instance has its profile behind it. GPUs with MIG mode on are
# listed by instance (MultipleFiles: the board and its two capability files), the others whole (File).
# Instances get new numbers with every cut, so this file cannot be written before it.

set -euo pipefail

readonly type="${1:-@TYPE@}" device="${DEVICE_ROOT:-/dev}"
readonly minors="${MIG_MINORS:-/proc/driver/nvidia-caps/mig-minors}"
[[ "$type" =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]] || {
  echo "$type: no type of Slurm" >&2
  exit 2
}

capability() { # PATH: number of the capability file, as the driver lists it
  awk -v path="$1" '$1 == path { print $2; found = 1 } END { exit !found }' "$minors" || {
    echo "$1: not in $minors" >&2
    return 1
  }
}

gpus=$(nvidia-smi --query-gpu=index,mig.mode.current --format=csv,noheader)
# | GPU  MIG profile  profile id  instance id  start:size |
instances=$(nvidia-smi mig -lgi | awk '$3 == "MIG" && $7 ~ /^[0-9]+:[0-9]+$/ { print $2, $4, $6 }')

while IFS=', ' read -r gpu mode; do
  minor=$(nvidia-smi -q -i "$gpu" | awk -F ': *' '/Minor Number/ { print $2; exit }')
  if [[ "$mode" != Enabled ]]; then
    echo "Name=gpu Type=$type File=$device/nvidia$minor"
    continue
  fi
  while read -r of profile instance; do
    if [[ "$of" != "$gpu" ]]; then continue; fi
    gi=$(capability "gpu$minor/gi$instance/access")
    ci=$(capability "gpu$minor/gi$instance/ci0/access")
    echo "Name=gpu Type=${type}_$profile MultipleFiles=$device/nvidia$minor,$device/nvidia-caps/nvidia-cap$gi,$device/nvidia-caps/nvidia-cap$ci"
  done <<<"$instances"
done <<<"$gpus"
