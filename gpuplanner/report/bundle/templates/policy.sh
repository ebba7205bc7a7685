#!/usr/bin/env bash
# Points the ClusterPolicy at ConfigMap @CONFIG_MAP@ for the MIG manager, and sets MIG strategy mixed, with which the
# device plugin advertises instances by profile.
#
#   bash FILE apply     create the ConfigMap; save the present settings in an annotation of the ClusterPolicy; change them
#   bash FILE copied    print the configurations that 'apply' copies from the present ConfigMap; changes nothing
#   bash FILE verify    compare the settings with the plan; changes nothing
#   bash FILE rollback  restore the saved settings
#
# Cluster-wide: the ConfigMap replaces yours for all nodes, the operator restarts its pods on all GPU nodes, and nodes
# that ran strategy single advertise nvidia.com/mig-* instead of nvidia.com/gpu. 'apply' copies each configuration that a
# node is labelled with, and that configmap.yaml lacks, from the ConfigMap that the ClusterPolicy names today. If it lacks
# one too, nothing changes: copy it into configmap.yaml, and run again.
# Environment: CLUSTER_POLICY, its name (default: the only one in the cluster).

set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
readonly here config_map='@CONFIG_MAP@' namespace='@NAMESPACE@' record='gpuplanner-previous'

@FAIL@
value() { # JSONPATH of the ClusterPolicy
  kubectl get clusterpolicies.nvidia.com "$policy" -o "jsonpath={$1}"
}

set_to() { # NAME STRATEGY
  kubectl patch clusterpolicies.nvidia.com "$policy" --type merge --patch \
    "{\"spec\": {\"mig\": {\"strategy\": \"$2\"}, \"migManager\": {\"config\": {\"name\": \"$1\"}}}}"
}

names() { # INDENT: names of the configurations on stdin
  sed -n "s/^$1[\"']\{0,1\}\([A-Za-z0-9._-]*\)[\"']\{0,1\}:.*/\1/p"
}

find_copied() { # sets copied, the configurations to copy, and missing, those that no ConfigMap has
  local configs label lacking='' theirs=${before:-$now}
  configs=$(names '      ' <"$here/configmap.yaml")
  for label in $(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.labels.nvidia\.com/mig\.config}{"\n"}{end}'); do
    if ! grep -qxF -- "$label" <<<"$configs"; then lacking+=" $label"; fi
  done
  theirs=${theirs%,*}
  copied=$(kubectl get configmap "${theirs:-default-mig-parted-config}" --namespace "$namespace" --ignore-not-found \
    -o 'go-template={{index .data "config.yaml"}}' | awk -v names="$lacking " '
      /^[^ #]/ { on = 0 }
      /^  [^ #-]/ { name = $1; gsub(/["\047:]/, "", name); on = index(names, " " name " ") }
      on')
  configs=$(names '  ' <<<"$copied")
  missing=''
  for label in $lacking; do
    if ! grep -qxF -- "$label" <<<"$configs"; then missing+=" $label"; fi
  done
}

verb="${1:-}"
[[ $# == 1 && "$verb" =~ ^(apply|copied|verify|rollback)$ ]] || {
  echo "usage: bash $0 apply|copied|verify|rollback" >&2
  exit 2
}
policy="${CLUSTER_POLICY:-$(kubectl get clusterpolicies.nvidia.com -o 'jsonpath={.items[*].metadata.name}')}"
[[ -n "$policy" && "$policy" != *' '* ]] || \
  fail "Expected one ClusterPolicy, found '$policy': set CLUSTER_POLICY=NAME."
readonly verb policy
before=$(value ".metadata.annotations.$record")
now="$(value .spec.migManager.config.name),$(value .spec.mig.strategy)"
case "$verb" in
  copied)
    find_copied
    names '  ' <<<"$copied"
    ;;
  apply)
    find_copied
    [[ -z "$missing" ]] || fail "Fix $config_map: nodes have labels of configurations that neither configmap.yaml nor the\
 present ConfigMap has:$missing. Nothing was changed."
    {
      cat "$here/configmap.yaml"
      if [[ -n "$copied" ]]; then sed 's/^/    /' <<<"$copied"; fi
    } | kubectl apply -f -
    if [[ "$now" == "$config_map,mixed" ]]; then
      echo "$policy: already as planned"
    else
      if [[ -z "$before" ]]; then
        kubectl annotate clusterpolicies.nvidia.com "$policy" --overwrite "$record=$now" >/dev/null
      fi
      set_to "$config_map" mixed
    fi
    ;;
  verify)
    [[ "$now" == "$config_map,mixed" ]] || fail "Fix $policy: it has $now; expected $config_map,mixed."
    echo "$policy: $now"
    ;;
  rollback)
    if [[ -z "$before" ]]; then
      echo "$policy: nothing to roll back"
    else
      set_to "${before%,*}" "${before##*,}"
      kubectl annotate clusterpolicies.nvidia.com "$policy" "$record-" >/dev/null
    fi
    ;;
esac
