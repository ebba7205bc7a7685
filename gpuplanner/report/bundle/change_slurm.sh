#!/usr/bin/env bash
# MIG layout change for @TIME@, or later; GPU model @GPU_MODEL@; on a Slurm cluster.
#
#   bash FILE check           list what would stop the change (preflight), running jobs, and the changes of slurm.conf
#   bash FILE reserve [TIME]  reserve the nodes from a time of yours (2026-11-02T08:00), or from the next planned time,
#                             for as long as the change may take: until then only jobs that end before it start there.
#                             'apply' and 'cancel' delete the reservation
#   bash FILE cancel          delete the reservation and resume the nodes that are not repartitioned yet
#   bash FILE apply           check, drain, wait until empty, repartition, update slurm.conf, reconfigure, resume
#   bash FILE verify          compare each node with the plan, in Slurm and by mig-parted assert; changes nothing.
#                             Instances that others added in slurm.conf are listed
#   bash FILE rollback        restore the MIG layout and Gres that each node had before, also after a failure, from STATE
#
# All nodes share slurm.conf, so they change together, once the last of them is empty. If a node still runs jobs after
# TIMEOUT_S, no node changes: all are resumed, the reservation is deleted, and the script exits with 75; with
# KEEP_DRAIN=yes they stay drained, and the same command goes on waiting. After any other failure it exits with 1 and
# leaves the nodes drained; fix the cause and run the same command again.
# MIG instances do not survive a reboot, and this script makes no unit that creates them again: see README.md.
# The live slurm.conf is rewritten in place (INSTALL). The file before the latest apply or rollback is
# slurm.conf.before-gpuplanner beside it; 'rollback' does not read it.
#
# Environment, with commands that your site may have to replace:
#   STOP_CLIENTS   run as STOP_CLIENTS NODE on a node that is empty, to stop services that hold its GPUs (DCGM, exporters)
#   START_CLIENTS  run as START_CLIENTS NODE once it is repartitioned
#   REPARTITION    run as REPARTITION NODE CONFIG; default: ssh NODE nvidia-mig-parted apply -f PARTED -c CONFIG
#   PARTED         (/etc/nvidia-mig-manager/config.yaml) path of mig-parted.yaml on the nodes
#   INSTALL        run as INSTALL FILE NODE...: writes the Gres of these nodes from FILE into slurm.conf; default:
#                  bash install-gres.sh, which rewrites the existing lines ('--dry-run' shows the difference)
#   STATIC_GRES    path of gres.conf on nodes whose slurmd has no NVML, such as /etc/slurm/gres.conf: static-gres.sh
#                  writes it again there. Each node must have its own file: not shared, not configless
#   RECONFIGURE    run as RECONFIGURE NODE...; default: scontrol reconfigure. Before Slurm 23.11 a new number of devices
#                  needs a restart: systemctl restart slurmctld, then slurmd on the nodes by ssh
#   TIMEOUT_S      (@TIMEOUT_S@) seconds to wait for nodes to empty
#   KEEP_DRAIN     yes: nodes stay drained after TIMEOUT_S
#   REPARTITION_S  (@REPARTITION_S@) seconds to wait until nodes register their new devices
#   CHANGE_LOG     CSV file with the time that nodes are out of service (gpuplanner/changes.csv in XDG_STATE_HOME)
#   STATE          folder for the layouts before the change (@NAME@.before beside this file)
#   AHEAD_S        (no limit) 'reserve' does nothing earlier than this many seconds before TIME or the planned time
#   RENAME         yes: change nodes although their GRES types change
#   NO_ROLLBACK    yes: change nodes although REPARTITION could not restore their present layout
#   IF_DUE=yes     do nothing unless a planned time has come and is at most TIMEOUT_S ago; 'reserve' then exits with 0
#                  when all planned times are over. IF_DUE=report prints whether each planned time is ahead, due or over
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" repartition_s="${REPARTITION_S:-@REPARTITION_S@}"
readonly poll_s="${POLL_S:-5}" times='@TIMES@'
readonly parted="${PARTED:-/etc/nvidia-mig-manager/config.yaml}" reason='gpuplanner @NAME@'
readonly nodes=(@NODES@)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly own='gpuplanner-@NAME@-own' # reservation for a time of the operator
readonly here lines="$here/@LINES@" state="${STATE:-$here/@NAME@.before}"
list=$(IFS=,; echo "${nodes[*]}")
readonly list

declare -A config=() gres=() before=() size=()
@STEPS@

@COMMON@
field() { # NODE KEY: a value from 'scontrol show node', without the sockets of devices
  scontrol show node "$1" | awk -v key="$2=" '
    { for (i = 1; i <= NF; i++) if (index($i, key) == 1) { print substr($0, index($0, $i) + length(key)); exit } }' |
    { if [[ "$2" == Reason ]]; then cat; else awk '{ print $1 }'; fi; } | sed 's/([^)]*)//g'
}

gpus() { # NODE: its GPU Gres, sorted
  field "$1" Gres | tr ',' '\n' | { grep -E '^gpu(:|$)' || true; } | LC_ALL=C sort | paste -s -d ',' -
}

repartition_node() { # NODE CONFIG
  if [[ -n "${REPARTITION:-}" ]]; then
    $REPARTITION "$1" "$2"
  elif [[ "$verb" == rollback ]]; then
    ssh "$1" nvidia-mig-parted apply -f - -c before <"$state/$1.yaml"
  else
    ssh "$1" nvidia-mig-parted apply -f "$parted" -c "$2"
  fi
}

install_lines() { # [--dry-run] FILE
  if [[ -z "${INSTALL:-}" ]]; then
    flock "$here" bash "$here/install-gres.sh" "$@" "${nodes[@]}"
  elif [[ "$1" != --dry-run ]]; then
    $INSTALL "$@" "${nodes[@]}"
  fi
}

reconfigure() {
  local node version
  version=$(scontrol --version | awk '{ print $2 }')
  if [[ -n "${RECONFIGURE:-}" ]]; then
    $RECONFIGURE "${nodes[@]}"
  elif [[ "$(printf '%s\n' 23.11 "$version" | sort -V | head -n 1)" == 23.11 ]]; then
    scontrol reconfigure
  else
    systemctl restart slurmctld
    for node in "${nodes[@]}"; do ssh "$node" systemctl restart slurmd; done
  fi
}

drained_by_us() { # NODE
  [[ "$(field "$1" State)" == *DRAIN* && "$(field "$1" Reason)" == "$reason"* ]]
}

running_jobs() { # NODE
  squeue --noheader --nodelist="$1" --format=%A | paste -s -d ' ' -
}

types() { # GRES: its GPU types without MIG profile, sorted
  tr ',' '\n' <<<"$1" | awk -F : '$1 == "gpu" && $2 ~ /[^0-9]/ { sub(/[_.-]?[0-9]+g\.[0-9]+gb.*$/, "", $2); if ($2 != "") print $2 }' |
    LC_ALL=C sort -u | paste -s -d ' ' -
}

check() { # before any change; also that the present layout can be restored
  local node code had planned problems=''
  for node in "${nodes[@]}"; do
    if ! scontrol show node "$node" >/dev/null 2>&1; then
      problems+="Node $node not found: check SLURM_CONF."$'\n'
    elif [[ "$(field "$node" State)" == *DRAIN* ]] && ! drained_by_us "$node"; then
      problems+="Fix $node: drained by another user or tool: $(field "$node" Reason)"$'\n'
    elif [[ "$(field "$node" State)" == *POWER* ]]; then
      problems+="Fix $node: it is powered down; run scontrol update nodename=$node state=power_up"$'\n'
    fi
    if [[ "$verb" == rollback ]]; then continue; fi
    had=$(types "$(gpus "$node")")
    planned=$(types "${gres[$node]}")
    if [[ -n "$had" && -n "$planned" && " $had " != *" $planned "* && "${RENAME:-no}" != yes ]]; then
      problems+="Fix $node: its GRES type is '$had', and '$planned' in this bundle, so jobs that request '$had' would be\
 rejected; export again with --gres-type, or change requests and limits first and set RENAME=yes."$'\n'
    fi
    if [[ -z "${REPARTITION:-}" ]]; then
      code=0
      ssh "$node" nvidia-mig-parted assert --valid-config -f "$parted" -c "${config[$node]}" >/dev/null || code=$?
      case $code in
        0) ;;
        255) problems+="Fix $node: no ssh to it as $(id -un)."$'\n' ;;
        127) problems+="Fix $node: nvidia-mig-parted is not installed there; install it, or set REPARTITION."$'\n' ;;
        *) problems+="Fix $node: $parted has no configuration ${config[$node]}; copy mig-parted.yaml there."$'\n' ;;
      esac
    elif [[ -z "${before[$node]:-}" && "${NO_ROLLBACK:-no}" != yes ]]; then
      problems+="Fix $node: its present layout is not in the plan, so REPARTITION could not restore it; set\
 NO_ROLLBACK=yes to change it anyway."$'\n'
    fi
  done
  if [[ -n "$problems" ]]; then fail "${problems}Nothing was changed."; fi
}

note_static_gres() { # File= lines name instances that the change deletes; slurmd then does not start
  local conf node
  if [[ -n "${STATIC_GRES:-}${RECONFIGURE:-}" ]]; then return; fi
  conf=$(dirname "${SLURM_CONF:-$(scontrol show config | awk '$1 == "SLURM_CONF" { print $3 }')}")/gres.conf
  for node in "${nodes[@]}"; do
    if { cat "$conf"; ssh "$node" cat "'$conf'"; } 2>/dev/null | grep -qiE '^[^#]*(Multiple)?Files? *='; then
      echo "note: $conf of $node or of this host has File= lines; if they are of MIG instances of $node, set STATIC_GRES" \
        "(README.md, section 2)."
    fi
  done
}

save_state() { # the present layouts and Gres, for a rollback
  local node
  for node in "${nodes[@]}"; do
    if drained_by_us "$node"; then return; fi
  done
  mkdir -p "$state"
  rm -f "$state/lines.new"
  for node in "${nodes[@]}"; do
    echo "NodeName=$node Gres=$(gpus "$node")" >>"$state/lines.new"
    if [[ -z "${REPARTITION:-}" ]]; then ssh "$node" nvidia-mig-parted export -l before >"$state/$node.yaml"; fi
  done
  mv "$state/lines.new" "$state/lines"
}

resume() {
  local node time name
  for node in "${nodes[@]}"; do
    if drained_by_us "$node"; then scontrol update nodename="$node" state=resume; fi
  done
  for name in "$own" $(for time in $times; do reservation "$time"; done); do
    if scontrol show reservation "$name" >/dev/null 2>&1; then scontrol delete reservationname="$name"; fi
  done
}

later_change() { # NODE: another change that repartitioned it last, by the log of this host
  if [[ -e "$change_log" ]]; then
    awk -F , -v node="$1" '$3 == node { last = $2 } END { if (last != "@NAME@") print last }' "$change_log"
  fi
}

reservation() { # TIME
  date -u -d "$1" '+gpuplanner-change-%Y%m%dT%H%M%SZ'
}

reserve() { # [TIME]: of the operator; else the next planned time
  local time start now name
  now=$(date -u +%s)
  for time in ${1:-$times}; do
    start=$(date -d "$time" +%s) || fail "Fix $time: expected a time such as 2026-11-02T08:00:00Z."
    name=$own
    if [[ " $times " == *" $(date -u -d "@$start" +%Y-%m-%dT%H:%M:%SZ) "* ]]; then name=$(reservation "$time"); fi
    if ((start > now + ${AHEAD_S:-2**62})); then
      echo "$time: not reserved yet"
      return
    elif ((start > now)); then
      if scontrol show reservation "$name" >/dev/null 2>&1; then
        echo "reserved already, by reservation $name; 'cancel' deletes it"
        return
      fi
      check
      scontrol create reservation reservationname="$name" nodes="$list" users=root \
        starttime="$(date -d "@$start" +%Y-%m-%dT%H:%M:%S)" duration="$(((timeout_s + repartition_s + 59) / 60))" \
        flags=maint,ignore_jobs
      return
    fi
  done
  if [[ "${IF_DUE:-no}" == yes ]]; then return; fi
  fail "Fix ${1:-$times}: this time is over; name a later one: bash $0 reserve 2026-11-02T08:00. 'apply' needs no reservation."
}

wait_until_empty() {
  local node jobs busy
  while true; do
    busy=''
    for node in "${nodes[@]}"; do
      jobs=$(running_jobs "$node")
      if [[ -n "$jobs" ]]; then busy+=" $node: $jobs."; fi
    done
    if [[ -z "$busy" ]]; then return; fi
    if ((SECONDS >= timeout_s)); then
      if [[ "${KEEP_DRAIN:-no}" != yes ]]; then resume; fi
      echo "Timed out after $timeout_s s: jobs still running:$busy All nodes keep their layout and" \
        "$([[ "${KEEP_DRAIN:-no}" == yes ]] && echo 'stay drained' || echo 'are resumed')." >&2
      exit 75
    fi
    sleep "$poll_s"
  done
}

differs() { # NODE: whether it differs from the plan; 'verify' accepts Gres that others added
  found=$(gpus "$1") added=''
  node_state=$(field "$1" State)
  if [[ "$verb" == verify ]]; then
    added=$(additions "$found" "${gres[$1]}") || return 0
  elif [[ "$found" != "${gres[$1]}" ]]; then
    return 0
  fi
  [[ "$node_state" =~ INVAL|UNKNOWN|(^|\+)DOWN|NOT_RESPONDING|\* ]]
}

compare() { # [SECONDS] to wait: after a change the daemons need a moment to register
  local node until=$((SECONDS + ${1:-0}))
  for node in "${nodes[@]}"; do
    while differs "$node"; do
      if ((SECONDS >= until)); then
        fail "Fix $node: Slurm has '$found' in state $node_state: $(field "$node" Reason); expected '${gres[$node]}'."
      fi
      sleep "$poll_s"
    done
    echo "$node: $node_state, ${found:-no GPU}${added:+ (added by others: $added)}"
  done
}

as_planned() {
  local node
  for node in "${nodes[@]}"; do
    if differs "$node" || drained_by_us "$node"; then return 1; fi
  done
}

change_nodes() { # FILE with the lines to install
  local node
  if as_planned; then
    resume
    echo "nothing to do: ${nodes[*]}"
    return
  fi
  if [[ "$verb" == apply ]]; then save_state; fi
  for node in "${nodes[@]}"; do
    if ! drained_by_us "$node"; then scontrol update nodename="$node" state=drain reason="$reason"; fi
  done
  wait_until_empty
  for node in "${nodes[@]}"; do
    log_change "$node" "${size[$node]}" begin
    if [[ -n "${STOP_CLIENTS:-}" ]]; then $STOP_CLIENTS "$node"; fi
    repartition_node "$node" "${config[$node]}"
    if [[ -n "${START_CLIENTS:-}" ]]; then $START_CLIENTS "$node"; fi
    if [[ -n "${STATIC_GRES:-}" ]]; then ssh "$node" "bash -s >'$STATIC_GRES'" <"$here/static-gres.sh"; fi
  done
  install_lines "$1"
  reconfigure
  compare "$repartition_s"
  for node in "${nodes[@]}"; do log_change "$node" "${size[$node]}" end; done
  resume
  echo "done, resumed: ${nodes[*]}"
}

verb="${1:-}"
[[ ($# == 1 && "$verb" =~ ^(check|cancel|apply|verify|rollback)$) || ("$verb" == reserve && $# -le 2) ]] || {
  echo "usage: bash $0 check|reserve [TIME]|cancel|apply|verify|rollback" >&2
  exit 2
}
readonly verb
if [[ "$verb" != reserve ]]; then exit_unless_due; fi
case "$verb" in
  check)
    check
    for node in "${nodes[@]}"; do
      echo "$node: running jobs: $(running_jobs "$node")"
      if [[ -z "${REPARTITION:-}" ]]; then
        echo "$node: services that may hold its GPUs: $(ssh "$node" systemctl list-units --state=active --plain \
          --no-legend "'nvidia-*' '*dcgm*'" | awk '{ print $1 }' | paste -s -d ' ' -)"
      fi
    done
    note_static_gres
    install_lines --dry-run "$lines"
    echo "ready to change: ${nodes[*]}"
    ;;
  reserve) reserve "${2:-}" ;;
  cancel) resume ;;
  apply)
    check
    install_lines --dry-run "$lines" >/dev/null
    change_nodes "$lines"
    ;;
  verify)
    compare
    for node in "${nodes[@]}"; do
      # Of a node with more instances, mig-parted cannot assert the planned ones; slurmd has found them.
      if [[ -n "$(additions "$(gpus "$node")" "${gres[$node]}")" ]]; then continue; fi
      [[ -n "${REPARTITION:-}" ]] || ssh "$node" nvidia-mig-parted assert -f "$parted" -c "${config[$node]}" >/dev/null ||
        fail "Fix $node: Slurm has the planned Gres, but mig-parted finds another layout than ${config[$node]}. If\
 others added instances, add their Gres in slurm.conf."
    done
    ;;
  rollback)
    if [[ ! -e "$state/lines" ]]; then
      check
      for node in "${nodes[@]}"; do
        if drained_by_us "$node" || additions "$(gpus "$node")" "${gres[$node]}" >/dev/null; then
          fail "Fix $node: it is repartitioned or drained for this change, but $state has no saved layouts. Run rollback in\
 the folder where apply ran, or set STATE to its saved layouts. Nothing was changed."
        fi
      done
      echo "not repartitioned, nothing to roll back: ${nodes[*]}"
      exit
    fi
    check
    while read -r name had; do
      name=${name#NodeName=}
      present=$(gpus "$name")
      # While this change still drains the node, it stopped half way, and any Gres may be there.
      if [[ "$present" != "${had#Gres=}" ]] && ! drained_by_us "$name"; then
        later=$(later_change "$name")
        added=$(additions "$present" "${gres[$name]}") && [[ -z "$added" || -z "$later" ]] ||
          fail "Fix $name: Slurm has '$present', expected '${gres[$name]}': by a later change; roll that one back first\
${later:+ ($later)}, or undo what was changed by hand. Nothing was changed."
        if [[ -n "$added" ]]; then echo "$name: the rollback also deletes what others added: $added"; fi
      fi
      gres[$name]=${had#Gres=} config[$name]=${before[$name]:-before}
    done <"$state/lines"
    change_nodes "$state/lines"
    rm -r -- "$state"
    ;;
esac
