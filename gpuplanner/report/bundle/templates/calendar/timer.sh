#!/usr/bin/env bash
# Makes the layout changes of this folder at their planned times.
#
#   bash FILE apply     install a timer that runs 'bash FILE run' every five minutes
#   bash FILE run       make the changes that are due, in parallel; on Slurm also reserve the nodes of the next change,
#                       AHEAD_S (@AHEAD_S@) seconds before it
#   bash FILE verify    check that the timer is installed, and print what 'run' would do now; changes nothing
#   bash FILE rollback  remove the timer and Slurm's reservations for changes; MIG layouts stay as they are
#
# A missed run does no harm: a change is due from its planned time until its timeout, and the next run makes it. Later it
# is skipped with a message, and the layout stays until the next change. Finished changes are not repeated, and a running
# one is not started again. 'run' exits with 0; with 75 if nodes did not empty; with 1 if a change failed. The timer's log
# has all messages.
#
# Environment: TIMER names the timer:
#   systemd  (default) units in UNITS (/etc/systemd/system), as root; journalctl --unit gpuplanner-calendar
#   cron     a line in the crontab of the user that runs this; messages go by mail
#   cluster  a CronJob in namespace @NAMESPACE@ with the scripts in a ConfigMap, on nodes without GPUs; IMAGE names an
#            image with bash, GNU coreutils, awk, util-linux and kubectl, such as Debian with kubernetes-client
# systemd and cron run the changes with the variables named in PASS_ENV, as set when the timer is installed.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here name='gpuplanner-calendar' namespace='@NAMESPACE@' timer="${TIMER:-systemd}"
readonly units="${UNITS:-/etc/systemd/system}" line="*/5 * * * * /bin/bash $here/timer.sh run # gpuplanner-calendar"
readonly pass_env="${PASS_ENV:-PATH HOME KUBECONFIG SLURM_CONF REPARTITION PARTED INSTALL FILE COPY STATIC_GRES RECONFIGURE\
 TIMEOUT_S REPARTITION_S NO_ROLLBACK AHEAD_S EVICT CHANGE_LOG CHECK_POLICY DRAIN_FLAGS ON_NODE CHECKPOINT PLUGIN PLUGIN_NAMESPACE}"

fail() {
  echo "$1" >&2
  exit 1
}

crontab_without() { # the other lines of the crontab
  crontab -l 2>/dev/null | grep -v ' # gpuplanner-calendar$' || true
}

apply() {
  local word
  [[ "$here" =~ ^[A-Za-z0-9/._-]+$ ]] || \
    fail "Fix $here: the name of the folder may have only letters, digits, '.', '_' and '-'; move it."
  if [[ "$timer" == cluster ]]; then
    [[ "${IMAGE:-}" =~ ^[A-Za-z0-9/._:@-]+$ ]] || \
      fail "Fix IMAGE: set IMAGE=NAME, an image with bash, coreutils and kubectl."
    kubectl create configmap "$name" --namespace "$namespace" --from-file="$here" --dry-run=client -o yaml |
      kubectl apply --server-side --force-conflicts -f -
    sed "s|image: IMAGE|image: $IMAGE|" "$here/timer.yaml" | kubectl apply -f -
    return
  fi
  for word in $pass_env; do
    if [[ -n "${!word:-}" ]]; then echo "export $word=${!word@Q}"; fi
  done >"$here/timer.env"
  if [[ "$timer" == cron ]]; then
    { crontab_without; echo "$line"; } | crontab -
  else
    for word in service timer; do sed "s|FOLDER|$here|" "$here/timer.$word" >"$units/$name.$word"; done
    systemctl daemon-reload
    systemctl enable --now "$name.timer"
  fi
}

run() {
  local script code worst=0 started=()
  if [[ -e "$here/timer.env" ]]; then . "$here/timer.env"; fi
  for script in "$here"/change-*.sh; do
    IF_DUE=yes flock --nonblock --conflict-exit-code 0 "$script" bash "$script" apply &
    started+=("$!")
  done
  for script in "${started[@]}"; do
    code=0
    wait "$script" || code=$?
    if ((code == 1 || (code && worst != 1))); then worst=$code; fi
  done
  if [[ '@ACTUATOR@' == slurm ]]; then
    for script in "$here"/change-*.sh; do
      IF_DUE=yes AHEAD_S="${AHEAD_S:-@AHEAD_S@}" bash "$script" reserve || worst=1
    done
  fi
  return "$worst"
}

verify() {
  local script
  case "$timer" in
    cluster) kubectl get cronjob "$name" --namespace "$namespace" ;;
    cron) crontab -l | grep -xF "$line" || \
      fail "Fix the crontab: it has no line for this folder; run 'bash $0 apply'." ;;
    *)
      grep -qF "$here/timer.sh" "$units/$name.service" || \
        fail "Fix $units/$name.service: it is not for this folder; run 'bash $0 apply'."
      systemctl list-timers "$name.timer"
      ;;
  esac
  for script in "$here"/change-*.sh; do
    echo "${script##*/}: $(IF_DUE=report bash "$script" apply)"
  done
}

rollback() {
  local word
  case "$timer" in
    cluster)
      kubectl delete --ignore-not-found -f "$here/timer.yaml"
      kubectl delete configmap "$name" --namespace "$namespace" --ignore-not-found
      ;;
    cron) crontab_without | crontab - ;;
    *)
      if [[ -e "$units/$name.timer" ]]; then systemctl disable --now "$name.timer"; fi
      rm -f "$units/$name.service" "$units/$name.timer"
      systemctl daemon-reload
      ;;
  esac
  rm -f "$here/timer.env"
  if [[ '@ACTUATOR@' == slurm ]]; then
    scontrol --oneliner show reservations | sed -n 's/^ReservationName=\(gpuplanner-change-[^ ]*\) .*/\1/p' |
      while read -r word; do scontrol delete reservationname="$word"; done
  fi
}

[[ $# == 1 && "$1" =~ ^(apply|run|verify|rollback)$ && "$timer" =~ ^(systemd|cron|cluster)$ ]] || {
  echo "usage: [TIMER=systemd|cron|cluster] bash $0 apply|run|verify|rollback" >&2
  exit 2
}
[[ "$timer" != cluster || '@ACTUATOR@' == mig-manager ]] || \
  fail "Fix TIMER: changes by @ACTUATOR@ need ssh to the nodes; set TIMER=systemd or TIMER=cron."
"$1"
