fail() {
  echo "$1" >&2
  exit 1
}

log_change() { # NODE GPUS begin|end: for 'gpuplanner ingest changes', which books the time
  local file="${CHANGE_LOG:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/gpuplanner/changes.csv}"
  {
    mkdir -p "$(dirname "$file")"
    [[ -s "$file" ]] || echo 'time,change,node,gpus,event' >>"$file"
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ),@NAME@,$1,$2,$3" >>"$file"
  } || echo "note: the time that $1 is out of service is not written down: $file" >&2
}

leave_unless_due() { # IF_DUE=yes: go on only within TIMEOUT_S of a planned time; IF_DUE=say: never
  local time now at said=''
  if [[ "${IF_DUE:-no}" == no ]]; then return; fi
  now=$(date -u +%s)
  for time in $times; do
    at=$(date -u -d "$time" +%s)
    if ((now < at)); then
      said+="; $time is ahead"
    elif ((now >= at + timeout_s)); then
      said+="; $time is past by more than $timeout_s s, and is skipped if it was not made"
    elif [[ "$IF_DUE" == yes ]]; then
      return
    else
      said+="; $time is due"
    fi
  done
  if [[ "$IF_DUE" == say ]]; then echo "${said#; }"; else echo "not due: ${said#; }"; fi
  exit 0
}
