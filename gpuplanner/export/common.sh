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

due() { # whether one of the planned times was in the last TIMEOUT_S
  local time now
  now=$(date -u +%s)
  for time in $times; do
    if ((now >= $(date -u -d "$time" +%s) && now < $(date -u -d "$time" +%s) + timeout_s)); then return 0; fi
  done
  return 1
}

leave_unless_due() {
  if [[ "${IF_DUE:-no}" == yes ]] && ! due; then
    echo "not due: planned for $times, at most $timeout_s s late"
    exit 0
  fi
}
