#!/usr/bin/env bash
# Keeps idle nodes on: SuspendExcNodes keeps them from going, this lets them come. Run it every minute, by cron of the
# one whom slurmctld runs as:  * * * * * bash @PROGRAMS@/reserve.sh
set -euo pipefail
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"

keep() { # PARTITION COUNT
  local idle sleeping
  idle=$(sinfo --noheader --Node --partition="$1" --format='%N %T' | grep -cE ' (idle|idle#|powering_up|powering_up#)$' || true)
  if ((idle >= $2)); then return; fi
  for sleeping in $(sinfo --noheader --Node --partition="$1" --format='%N %T' | awk '$2 == "idle~" { print $1 }' | head -n "$(($2 - idle))"); do
    scontrol update nodename="$sleeping" state=power_up
  done
}

@RESERVE@
