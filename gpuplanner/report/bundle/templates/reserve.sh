#!/usr/bin/env bash
# Keeps a reserve of idle nodes powered on: SuspendExcNodes prevents their power-down, this script powers them up. Run it
# every minute in the crontab of the user that runs slurmctld:  * * * * * bash @PROGRAMS@/reserve.sh
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"

keep() { # PARTITION COUNT
  local idle node
  idle=$(sinfo --noheader --Node --partition="$1" --format='%N %T' | grep -cE ' (idle|idle#|powering_up|powering_up#)$' || true)
  if ((idle >= $2)); then return; fi
  for node in $(sinfo --noheader --Node --partition="$1" --format='%N %T' | awk '$2 == "idle~" { print $1 }' | head -n "$(($2 - idle))"); do
    scontrol update nodename="$node" state=power_up
  done
}

@RESERVE@
