@FAIL@
log_change() { # NODE GPUS begin|end: 'gpuplanner ingest changes' reads this log
  local file="${CHANGE_LOG:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/gpuplanner/changes.csv}"
  {
    mkdir -p "$(dirname "$file")"
    [[ -s "$file" ]] || echo 'time,change,node,gpus,event' >>"$file"
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ),@NAME@,$1,$2,$3" >>"$file"
  } || echo "note: cannot write $file; the time that $1 is out of service is not recorded" >&2
}

exit_unless_due() { # IF_DUE=yes: continue only within TIMEOUT_S after a planned time; IF_DUE=report: print and exit
  local time now at status=''
  if [[ "${IF_DUE:-no}" == no ]]; then return; fi
  now=$(date -u +%s)
  for time in $times; do
    at=$(date -u -d "$time" +%s)
    if ((now < at)); then
      status+="; $time is ahead"
    elif ((now >= at + timeout_s)); then
      status+="; $time is over by more than $timeout_s s: skipped if the change was not made"
    elif [[ "$IF_DUE" == yes ]]; then
      return
    else
      status+="; $time is due"
    fi
  done
  if [[ "$IF_DUE" == report ]]; then echo "${status#; }"; else echo "not due: ${status#; }"; fi
  exit 0
}
