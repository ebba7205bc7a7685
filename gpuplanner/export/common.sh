fail() {
  echo "$1" >&2
  exit 1
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
