#!/usr/bin/env bash
# Installs pools.conf and the power-saving programs on the Slurm controller.
#
#   bash FILE apply     write gpuplanner.conf beside slurm.conf, include it, restart slurmctld
#   bash FILE verify    compare the settings of slurmctld with pools.conf; changes nothing
#   bash FILE rollback  remove the Include lines from slurm.conf and gres.conf, restart slurmctld; other edits stay
#
# Before you start: write power.sh for your machines. The shipped one only logs, so no node would power up.
# Environment:
#   PROGRAMS  (@PROGRAMS@) folder of the programs
#   RESTART   (systemctl restart slurmctld)
#   COPY      run as COPY FILE... to copy the files to nodes that neither share slurm.conf nor are configless

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
conf="${SLURM_CONF:-$(scontrol show config | awk '$1 == "SLURM_CONF" { print $3 }')}"
programs="${PROGRAMS:-@PROGRAMS@}"
readonly here conf programs ours="${conf%/*}/gpuplanner.conf"
readonly gres="${conf%/*}/gres.conf" our_gres="${conf%/*}/gpuplanner-gres.conf"

@FAIL@
hardware() { # MACHINE: hardware keys of its node line
  scontrol show node "$1" | tr ' ' '\n' |
    grep -E '^(Boards|Sockets|CoresPerSocket|ThreadsPerCore|RealMemory|CPUTot)=' |
    sed -e 's/^CPUTot=/CPUs=/' | paste -s -d ' ' -
}

written() { # pools.conf with the hardware of each machine
  local line machine
  while IFS= read -r line; do
    if [[ "$line" == NodeName=*' '* ]]; then
      machine=$(sed -n 's/.*NodeHostname=\([^ ]*\).*/\1/p' <<<"$line")
      machine=$(scontrol show hostnames "$machine" | head -n 1)
      line="$line $(hardware "$machine")"
    fi
    printf '%s\n' "${line//'@PROGRAMS@'/$programs}"
  done <"$here/pools.conf"
}

drop_line() { # FILE LINE
  grep -vxF -- "$2" "$1" >"$1.new" || [[ $? == 1 ]]
  cat "$1.new" >"$1"
  rm "$1.new"
}

same_gres() { # whether the GPU lines of the controller are already installed
  [[ ! -e "$here/controller-gres.conf" ]] || cmp -s "$here/controller-gres.conf" "$our_gres"
}

case "${1:-}" in
  apply)
    mkdir -p "$programs"
    cp "$here"/{resume,suspend,reserve}.sh "$here/layouts.txt" "$programs/"
    if [[ ! -e "$programs/power.sh" ]]; then cp "$here/power.sh" "$programs/"; fi
    chmod +x "$programs"/*.sh
    written >"$ours.new"
    if cmp -s "$ours.new" "$ours" && same_gres && grep -qx "Include ${ours##*/}" "$conf"; then
      rm "$ours.new"
      echo "already as planned"
      exit
    fi
    mv "$ours.new" "$ours"
    if ! grep -qx "Include ${ours##*/}" "$conf"; then
      cp -p "$conf" "$conf.before-pools"
      printf 'Include %s\n' "${ours##*/}" >>"$conf"
    fi
    if [[ -e "$here/controller-gres.conf" ]]; then
      cp "$here/controller-gres.conf" "$our_gres"
      if ! grep -qsx "Include ${our_gres##*/}" "$gres"; then
        if [[ -e "$gres" ]]; then cp -p "$gres" "$gres.before-pools"; fi
        printf 'Include %s\n' "${our_gres##*/}" >>"$gres"
      fi
    fi
    ${COPY:-true} "$conf" "$ours"
    # Machines that are up now run under their own name.
    mkdir -p "$programs/up"
    powered_up=()
    while read -r name machine _; do
      if [[ -e "$programs/up/$machine" || "$(scontrol show node "$machine")" == *POWERED_DOWN* ]]; then continue; fi
      powered_up+=("$machine")
    done < <(awk '!listed[$2]++' "$here/layouts.txt")
    for machine in ${powered_up[@]+"${powered_up[@]}"}; do echo "$machine" >"$programs/up/$machine"; done
    ${RESTART:-systemctl restart slurmctld}
    until scontrol ping >/dev/null 2>&1; do sleep 1; done
    while read -r name machine _; do
      if [[ "$name" != "$machine" && "$(cat "$programs/up/$machine" 2>/dev/null)" == "$machine" ]]; then
        scontrol update nodename="$name" state=drain reason="gpuplanner: $machine is up as $machine"
      fi
    done <"$here/layouts.txt"
    ;;
  verify)
    # Read all of it first: with pipefail, a grep that stops early would fail the pipe.
    set_now=$(scontrol show config | tr -s ' ')
    for key in SuspendProgram ResumeProgram SuspendTimeout ResumeTimeout SuspendExcNodes; do
      expected=$(sed -n "s#^$key=##p" "$ours")
      grep -qF "$key = $expected" <<<"$set_now" || fail "Fix $key: expected $expected; run 'bash $0 apply'."
    done
    for partition in $(sed -n 's/^PartitionName=\([^ ]*\).*/\1/p' "$ours"); do
      scontrol show partition "$partition" >/dev/null || fail "Fix $partition: slurmctld has no such partition; run 'bash $0 apply'."
    done
    echo "power saving is set"
    ;;
  rollback)
    if grep -qx "Include ${ours##*/}" "$conf"; then
      drop_line "$conf" "Include ${ours##*/}"
      rm -f "$ours" "$conf.before-pools"
      if [[ -e "$our_gres" ]]; then
        drop_line "$gres" "Include ${our_gres##*/}"
        rm -f "$our_gres" "$gres.before-pools"
        if [[ ! -s "$gres" ]]; then rm "$gres"; fi
      fi
      rm -rf "$programs/up"
      ${COPY:-true} "$conf"
      ${RESTART:-systemctl restart slurmctld}
    fi
    ;;
  *)
    echo "usage: bash $0 apply|verify|rollback" >&2
    exit 2
    ;;
esac
