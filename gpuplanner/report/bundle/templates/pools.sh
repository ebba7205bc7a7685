#!/usr/bin/env bash
# Puts pools.conf and the programs that switch nodes in place, on the controller of Slurm.
#
#   bash FILE apply     keep slurm.conf as it is, write gpuplanner.conf beside it, include that, start slurmctld anew
#   bash FILE verify    compare what slurmctld says with pools.conf; changes nothing
#   bash FILE rollback  put everything back; nodes of ours that are up are first left to end their jobs
#
# Before: write power.sh for your machines. As it is, it only writes down what it was asked for, so that no node would
# ever come. Every host needs the same slurm.conf: if it is not shared or served, copy both files to the nodes (COPY,
# run as COPY FILE...).
# Environment: PROGRAMS (@PROGRAMS@), RESTART (systemctl restart slurmctld).

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
conf="${SLURM_CONF:-$(scontrol show config | awk '$1 == "SLURM_CONF" { print $3 }')}"
programs="${PROGRAMS:-@PROGRAMS@}"
readonly here conf programs ours="${conf%/*}/gpuplanner.conf"
readonly gres="${conf%/*}/gres.conf" our_gres="${conf%/*}/gpuplanner-gres.conf"

@COMMON@
hardware() { # MACHINE: what its own node line says of it
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

same_gres() { # whether slurmctld reads our GPUs as they are now
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
      echo "is so already"
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
    # What is up now is up under its own name.
    mkdir -p "$programs/up"
    awake=()
    while read -r name machine _; do
      if [[ -e "$programs/up/$machine" || "$(scontrol show node "$machine")" == *POWERED_DOWN* ]]; then continue; fi
      awake+=("$machine")
    done < <(awk '!seen[$2]++' "$here/layouts.txt")
    for machine in ${awake[@]+"${awake[@]}"}; do echo "$machine" >"$programs/up/$machine"; done
    ${RESTART:-systemctl restart slurmctld}
    until scontrol ping >/dev/null 2>&1; do sleep 1; done
    while read -r name machine _; do
      if [[ "$name" != "$machine" && "$(cat "$programs/up/$machine" 2>/dev/null)" == "$machine" ]]; then
        scontrol update nodename="$name" state=drain reason="gpuplanner: $machine is up as $machine"
      fi
    done <"$here/layouts.txt"
    ;;
  verify)
    # All of it first: a grep that has seen enough ends the pipe, and with it this.
    set_now=$(scontrol show config | tr -s ' ')
    for key in SuspendProgram ResumeProgram SuspendTimeout ResumeTimeout SuspendExcNodes; do
      wanted=$(sed -n "s#^$key=##p" "$ours")
      grep -qF "$key = $wanted" <<<"$set_now" || fail "$key: expected $wanted."
    done
    for partition in $(sed -n 's/^PartitionName=\([^ ]*\).*/\1/p' "$ours"); do
      scontrol show partition "$partition" >/dev/null || fail "$partition: slurmctld does not know it."
    done
    echo "power saving is set"
    ;;
  rollback)
    if [[ -e "$conf.before-pools" ]]; then
      mv "$conf.before-pools" "$conf"
      rm -f "$ours"
      if [[ -e "$our_gres" ]]; then
        rm "$our_gres" "$gres"
        if [[ -e "$gres.before-pools" ]]; then mv "$gres.before-pools" "$gres"; fi
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
