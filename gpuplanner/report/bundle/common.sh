@FAIL@
additions() { # FOUND PLANNED: instances of FOUND beyond PLANNED, as others may have made them; 1 if FOUND lacks some
  awk -v found="$1" -v planned="$2" '
    function add(text, sign,    n, i, items, name) {
      n = split(text, items, /[ ,]+/)
      for (i = 1; i <= n; i++) {
        name = items[i]
        sub(/[=:][0-9]+$/, "", name)
        # An item without a number is one instance.
        if (name != "" && name != "none") more[name] += sign * (name == items[i] ? 1 : substr(items[i], length(name) + 2))
      }
    }
    BEGIN {
      add(found, 1)
      add(planned, -1)
      for (name in more) if (more[name] < 0) lacking = 1; else if (more[name] > 0) print more[name] " × " name
      exit lacking
    }' | LC_ALL=C sort | paste -s -d ',' -
}

readonly change_log="${CHANGE_LOG:-${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/gpuplanner/changes.csv}"
log_change() { # NODE GPUS begin|end: 'gpuplanner ingest changes' reads this log
  local file=$change_log
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
