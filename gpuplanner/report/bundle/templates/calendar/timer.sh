#!/usr/bin/env bash
# Starts the changes of this folder at their planned times.
#
#   bash FILE apply     put the timer in place: every five minutes it runs 'bash FILE run'
#   bash FILE run       make the changes that are due, side by side; on Slurm also reserve the nodes of the next one as
#                       long before as the plan says (AHEAD_S, @AHEAD_S@ s)
#   bash FILE verify    say whether the timer is in place, and what 'run' would do now; changes nothing
#   bash FILE rollback  take the timer away, and Slurm's reservations for changes; what is cut stays as it is
#
# A run that is missed does no harm: a change is due from its planned time until it would be given up, so the next run
# catches up; later than that it is skipped, which 'run' says, and the layout stays until the next change. What is done
# is not done twice, and a change that is still being made is not started again. 'run' ends with the largest code of its
# changes: 0, 75 where nodes did not empty, 1 where one failed. All is in the log of the timer.
#
# Environment: TIMER says who keeps the time:
#   systemd  units in UNITS (/etc/systemd/system), as root; journalctl --unit gpuplanner-calendar (the default)
#   cron     a line in the crontab of whoever runs this; what is said goes by mail
#   cluster  a CronJob in namespace @NAMESPACE@ with the scripts in a ConfigMap, on nodes without GPUs; IMAGE names an
#            image with bash, GNU coreutils, awk, util-linux and kubectl, such as Debian with kubernetes-client
# systemd and cron run the changes with the variables of KEPT as they are when the timer is put in place.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here name='gpuplanner-calendar' namespace='@NAMESPACE@' timer="${TIMER:-systemd}"
readonly units="${UNITS:-/etc/systemd/system}" line="*/5 * * * * /bin/bash $here/timer.sh run # gpuplanner-calendar"
readonly kept="${KEPT:-PATH HOME KUBECONFIG SLURM_CONF CUT PARTED INSTALL FILE COPY STATIC_GRES RECONFIGURE TIMEOUT_S\
 CUT_S AHEAD_S EVICT CHANGE_LOG CLUSTER_POLICY DRAIN_FLAGS ON_NODE CHECKPOINT PLUGIN PLUGIN_NAMESPACE}"

fail() {
  echo "$1" >&2
  exit 1
}

crontab_without() { # what others have in the crontab
  crontab -l 2>/dev/null | grep -v ' # gpuplanner-calendar$' || true
}

apply() {
  local word
  [[ "$here" =~ ^[A-Za-z0-9/._-]+$ ]] || fail "$here: a timer needs a folder whose name has letters, digits, ._- alone."
  if [[ "$timer" == cluster ]]; then
    [[ "${IMAGE:-}" =~ ^[A-Za-z0-9/._:@-]+$ ]] || fail "IMAGE: name an image with bash, coreutils and kubectl."
    kubectl create configmap "$name" --namespace "$namespace" --from-file="$here" --dry-run=client -o yaml |
      kubectl apply --server-side --force-conflicts -f -
    sed "s|image: IMAGE|image: $IMAGE|" "$here/timer.yaml" | kubectl apply -f -
    return
  fi
  for word in $kept; do
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
  if [[ '@PATH@' == slurm ]]; then
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
    cron) crontab -l | grep -xF "$line" || fail "The crontab has no line for this folder." ;;
    *)
      grep -qF "$here/timer.sh" "$units/$name.service" || fail "$units/$name.service is not for this folder."
      systemctl list-timers "$name.timer"
      ;;
  esac
  for script in "$here"/change-*.sh; do
    echo "${script##*/}: $(IF_DUE=say bash "$script" apply)"
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
  if [[ '@PATH@' == slurm ]]; then
    scontrol --oneliner show reservations | sed -n 's/^ReservationName=\(gpuplanner-change-[^ ]*\) .*/\1/p' |
      while read -r word; do scontrol delete reservationname="$word"; done
  fi
}

[[ $# == 1 && "$1" =~ ^(apply|run|verify|rollback)$ && "$timer" =~ ^(systemd|cron|cluster)$ ]] || {
  echo "usage: [TIMER=systemd|cron|cluster] bash $0 apply|run|verify|rollback" >&2
  exit 2
}
[[ "$timer" != cluster || '@PATH@' == operator ]] || fail "TIMER=cluster: changes on path @PATH@ need ssh to nodes."
"$1"
