#!/usr/bin/env bash
# Print gres.conf of this node, for Slurm builds without NVML (AutoDetect=nvml does not work there).
#
#   bash static-gres.sh [TYPE] >gres.conf     on the node itself, after every change of its MIG layout
#
# TYPE is the type of a full GPU in slurm.conf (default @TYPE@; a MIG instance is @MIG@<profile>). MIG-enabled GPUs are
# listed by instance (MultipleFiles: the device file of the GPU and two capability files), the others as full GPUs (File).
# Instances get new numbers with every layout change, so this file cannot be written in advance.

set -euo pipefail

readonly type="${1:-@TYPE@}" mig="${1:-@MIG@}${1:+_}" device="${DEVICE_ROOT:-/dev}"
readonly minors="${MIG_MINORS:-/proc/driver/nvidia-caps/mig-minors}"
[[ "$type" =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]] || {
  echo "Fix $type: a Slurm type has letters, digits, _, . and -" >&2
  exit 2
}

capability() { # PATH: number of the capability file in the driver's list
  awk -v path="$1" '$1 == path { print $2; found = 1 } END { exit !found }' "$minors" || {
    echo "Fix $1: it is not in $minors" >&2
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
    echo "Name=gpu Type=$mig$profile MultipleFiles=$device/nvidia$minor,$device/nvidia-caps/nvidia-cap$gi,$device/nvidia-caps/nvidia-cap$ci"
  done <<<"$instances"
done <<<"$gpus"
