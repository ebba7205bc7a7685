#!/usr/bin/env bash
# MIG layout change planned for @TIME@, board @BOARD@, on a Slurm cluster.
#
#   bash FILE check           say what would stop it, who is at work, and what would change in slurm.conf
#   bash FILE reserve [TIME]  reserve the nodes from the next planned time on, for as long as the change may take: until
#                             then only jobs start there that end by then; 'apply' and 'cancel' end it
#   bash FILE cancel          take reservation and drain back, where nothing is cut yet
#   bash FILE apply           check, drain, wait until empty, cut, install the lines, reconfigure, compare, resume
#   bash FILE verify          compare each node with the plan; changes nothing
#   bash FILE rollback        give the nodes back what they had before, with the same steps; also half-way
#
# slurm.conf is one for all nodes, so they change together: those that are empty first wait for the last. If one of
# them has not emptied within TIMEOUT_S the change is given up: all are resumed as they were, the reservation ends, and
# the script ends with 75. At any other fault it ends with 1 and leaves them drained; run the same words again.
#
# Environment, commands that your site may have to replace:
#   CUT          run as CUT NODE CONFIG; default: ssh NODE nvidia-mig-parted apply -f PARTED -c CONFIG
#   PARTED       where mig-parted.yaml lies on the nodes (/etc/nvidia-mig-manager/config.yaml)
#   INSTALL      run as INSTALL FILE NODE...: puts the Gres of these nodes from FILE into slurm.conf; default:
#                bash install-gres.sh, which rewrites the lines that are there. With --dry-run before FILE it only shows.
#   STATIC_GRES  a path on the nodes: renew that gres.conf by static-gres.sh there, where slurmd has no NVML
#   RECONFIGURE  run as RECONFIGURE NODE...; default: scontrol reconfigure from Slurm 23.11 on; before, the number of
#                devices changes only with new daemons: systemctl restart slurmctld, and slurmd on the nodes by ssh
#   TIMEOUT_S    (@TIMEOUT_S@) for the nodes to empty; CUT_S (@CUT_S@) until they are back with their new devices
#   CHANGE_LOG   where it is written down how long nodes are out of service (gpuplanner/changes.csv in XDG_STATE_HOME)
#   STATE        where is written down what was there before (@NAME@.before beside this file)
#   AHEAD_S      'reserve' does nothing earlier than that before the planned time
#   IF_DUE=yes   does nothing unless it is the planned time and not later than TIMEOUT_S after it, and takes no offence at
#                'reserve' when all times have passed. IF_DUE=say only says which of them is ahead, due or past
#
@NOTES@

set -euo pipefail

readonly timeout_s="${TIMEOUT_S:-@TIMEOUT_S@}" cut_s="${CUT_S:-@CUT_S@}" poll_s="${POLL_S:-5}" times='@TIMES@'
readonly parted="${PARTED:-/etc/nvidia-mig-manager/config.yaml}" reason='gpuplanner @NAME@'
readonly nodes=(@NODES@)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here lines="$here/@LINES@" state="${STATE:-$here/@NAME@.before}"
list=$(IFS=,; echo "${nodes[*]}")
readonly list

declare -A config=() gres=() before=() size=()
@STEPS@

@COMMON@
field() { # NODE KEY: what Slurm says of a node, without the sockets of devices
  scontrol show node "$1" | awk -v key="$2=" '
    { for (i = 1; i <= NF; i++) if (index($i, key) == 1) { print substr($0, index($0, $i) + length(key)); exit } }' |
    { if [[ "$2" == Reason ]]; then cat; else cut -d ' ' -f 1; fi; } | sed 's/([^)]*)//g'
}

gpus() { # NODE: its Gres that are GPUs, in a fixed order
  field "$1" Gres | tr ',' '\n' | { grep -E '^gpu(:|$)' || true; } | LC_ALL=C sort | paste -s -d ',' -
}

cut_node() { # NODE CONFIG
  if [[ -n "${CUT:-}" ]]; then
    $CUT "$1" "$2"
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

at_work() { # NODE: jobs there
  squeue --noheader --nodelist="$1" --format=%A | paste -s -d ' ' -
}

check() { # before anything is done: also that what is there can be given back
  local node faults=''
  for node in "${nodes[@]}"; do
    if ! scontrol show node "$node" >/dev/null 2>&1; then
      faults+="$node: is not in this cluster."$'\n'
    elif [[ "$(field "$node" State)" == *DRAIN* ]] && ! drained_by_us "$node"; then
      faults+="$node: was drained by somebody else: $(field "$node" Reason)"$'\n'
    elif [[ "$(field "$node" State)" == *POWER* ]]; then
      faults+="$node: is powered down, or on its way; first: scontrol update nodename=$node state=power_up"$'\n'
    elif [[ -z "${CUT:-}" && "$verb" != rollback ]]; then
      ssh "$node" nvidia-mig-parted assert --valid-config -f "$parted" -c "${config[$node]}" >/dev/null ||
        faults+="$node: $parted does not hold ${config[$node]}; put mig-parted.yaml there."$'\n'
    elif [[ -z "${before[$node]:-}" && "${NO_WAY_BACK:-no}" != yes && "$verb" != rollback ]]; then
      faults+="$node: what it has is not in the plan, so CUT could not give it back; NO_WAY_BACK=yes goes on."$'\n'
    fi
  done
  if [[ -n "$faults" ]]; then fail "${faults}Nothing was changed."; fi
}

remember() { # what is there, for the way back
  local node
  for node in "${nodes[@]}"; do
    if drained_by_us "$node"; then return; fi
  done
  mkdir -p "$state"
  rm -f "$state/lines.new"
  for node in "${nodes[@]}"; do
    echo "NodeName=$node Gres=$(gpus "$node")" >>"$state/lines.new"
    if [[ -z "${CUT:-}" ]]; then ssh "$node" nvidia-mig-parted export -l before >"$state/$node.yaml"; fi
  done
  mv "$state/lines.new" "$state/lines"
}

resume() {
  local node time
  for node in "${nodes[@]}"; do
    if drained_by_us "$node"; then scontrol update nodename="$node" state=resume; fi
  done
  for time in $times; do
    if scontrol show reservation "$(reservation "$time")" >/dev/null 2>&1; then
      scontrol delete reservationname="$(reservation "$time")"
    fi
  done
}

reservation() { # TIME
  date -u -d "$1" '+gpuplanner-change-%Y%m%dT%H%M%SZ'
}

reserve() { # [TIME]: a planned one; never earlier
  local time start now
  now=$(date -u +%s)
  for time in ${1:-$times}; do
    start=$(date -d "$time" +%s) || fail "$time: is no time."
    if [[ -n "${1:-}" && " $times " != *" $(date -u -d "@$start" +%Y-%m-%dT%H:%M:%SZ) "* ]]; then
      fail "$time: is none of the planned times: $times."
    fi
    if ((start > now + ${AHEAD_S:-2**62})); then
      echo "$time: is not reserved yet"
      return
    elif ((start > now)); then
      if scontrol show reservation "$(reservation "$time")" >/dev/null 2>&1; then
        echo "$time: is reserved"
        return
      fi
      check
      scontrol create reservation reservationname="$(reservation "$time")" nodes="$list" users=root \
        starttime="$(date -d "@$start" +%Y-%m-%dT%H:%M:%S)" duration="$(((timeout_s + cut_s + 59) / 60))" \
        flags=maint,ignore_jobs
      return
    fi
  done
  if [[ "${IF_DUE:-no}" == yes ]]; then return; fi
  fail "${1:-$times}: has passed; 'apply' needs no reservation."
}

wait_until_empty() {
  local node jobs busy
  while true; do
    busy=''
    for node in "${nodes[@]}"; do
      jobs=$(at_work "$node")
      if [[ -n "$jobs" ]]; then busy+=" $node: $jobs."; fi
    done
    if [[ -z "$busy" ]]; then return; fi
    if ((SECONDS >= timeout_s)); then
      resume
      echo "Given up after $timeout_s s, still at work:$busy All nodes are resumed as they were." >&2
      exit 75
    fi
    sleep "$poll_s"
  done
}

differs() { # NODE: whether it is not as it should be
  found=$(gpus "$1")
  said=$(field "$1" State)
  [[ "$found" != "${gres[$1]}" || "$said" =~ INVAL|UNKNOWN|(^|\+)DOWN|NOT_RESPONDING|\* ]]
}

compare() { # [SECONDS]: after a change the daemons take a moment to register again
  local node until=$((SECONDS + ${1:-0}))
  for node in "${nodes[@]}"; do
    while differs "$node"; do
      if ((SECONDS >= until)); then
        fail "$node: expected '${gres[$node]}', Slurm has '$found' in state $said: $(field "$node" Reason)"
      fi
      sleep "$poll_s"
    done
    echo "$node: $said, ${found:-no GPU}"
  done
}

as_it_should_be() {
  local node
  for node in "${nodes[@]}"; do
    if differs "$node" || drained_by_us "$node"; then return 1; fi
  done
}

recut() { # FILE with the lines to install
  local node
  if as_it_should_be; then
    resume
    echo "nothing to do: ${nodes[*]}"
    return
  fi
  if [[ "$verb" == apply ]]; then remember; fi
  for node in "${nodes[@]}"; do
    if ! drained_by_us "$node"; then scontrol update nodename="$node" state=drain reason="$reason"; fi
  done
  wait_until_empty
  for node in "${nodes[@]}"; do
    log_change "$node" "${size[$node]}" begin
    cut_node "$node" "${config[$node]}"
    if [[ -n "${STATIC_GRES:-}" ]]; then ssh "$node" "bash -s >'$STATIC_GRES'" <"$here/static-gres.sh"; fi
  done
  install_lines "$1"
  reconfigure
  compare "$cut_s"
  for node in "${nodes[@]}"; do log_change "$node" "${size[$node]}" end; done
  resume
}

verb="${1:-}"
[[ ($# == 1 && "$verb" =~ ^(check|cancel|apply|verify|rollback)$) || ("$verb" == reserve && $# -le 2) ]] || {
  echo "usage: bash $0 check|reserve [TIME]|cancel|apply|verify|rollback" >&2
  exit 2
}
readonly verb
if [[ "$verb" != reserve ]]; then leave_unless_due; fi
case "$verb" in
  check)
    check
    for node in "${nodes[@]}"; do echo "$node: at work: $(at_work "$node")"; done
    install_lines --dry-run "$lines"
    ;;
  reserve) reserve "${2:-}" ;;
  cancel) resume ;;
  apply)
    check
    install_lines --dry-run "$lines" >/dev/null
    recut "$lines"
    ;;
  verify) compare ;;
  rollback)
    if [[ ! -e "$state/lines" ]]; then
      resume
      echo "nothing was cut, nothing to take back: ${nodes[*]}"
      exit
    fi
    check
    while read -r name had; do
      name=${name#NodeName=}
      gres[$name]=${had#Gres=} config[$name]=${before[$name]:-before}
    done <"$state/lines"
    recut "$state/lines"
    rm -r -- "$state"
    ;;
esac
