#!/usr/bin/env bash
# Points the ClusterPolicy at ConfigMap @CONFIG_MAP@ for the MIG manager, and sets MIG strategy mixed, with which the
# device plugin advertises instances by profile.
#
#   bash FILE apply     save the present settings in an annotation of the ClusterPolicy, and change them
#   bash FILE verify    compare the settings with the plan; changes nothing
#   bash FILE rollback  restore the saved settings
#
# Cluster-wide: the ConfigMap replaces yours for all nodes, the operator restarts its pods on all GPU nodes, and nodes
# that ran strategy single advertise nvidia.com/mig-* instead of nvidia.com/gpu. 'apply' first checks that the ConfigMap
# has every configuration that a node is labelled with; copy missing ones from yours into configmap.yaml, and run again.
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

require_labels() { # every configuration that nodes are labelled with must be in the ConfigMap
  local configs label missing=''
  configs=$(kubectl get configmap "$config_map" --namespace "$namespace" --ignore-not-found \
    -o 'go-template={{index .data "config.yaml"}}' | sed -n "s/^  [\"']\{0,1\}\([A-Za-z0-9._-]*\)[\"']\{0,1\}:.*/\1/p")
  [[ -n "$configs" ]] ||
    fail "ConfigMap $namespace/$config_map does not exist yet: run 'kubectl apply -f $here/configmap.yaml' first."
  for label in $(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.labels.nvidia\.com/mig\.config}{"\n"}{end}'); do
    grep -qxF -- "$label" <<<"$configs" || missing+=" $label"
  done
  [[ -z "$missing" ]] || fail "Fix $config_map: nodes have labels of configurations that it lacks:$missing. Nothing was\
 changed."
}

verb="${1:-}"
[[ $# == 1 && "$verb" =~ ^(apply|verify|rollback)$ ]] || {
  echo "usage: bash $0 apply|verify|rollback" >&2
  exit 2
}
policy="${CLUSTER_POLICY:-$(kubectl get clusterpolicies.nvidia.com -o 'jsonpath={.items[*].metadata.name}')}"
[[ -n "$policy" && "$policy" != *' '* ]] || \
  fail "Expected one ClusterPolicy, found '$policy': set CLUSTER_POLICY=NAME."
readonly verb policy
before=$(value ".metadata.annotations.$record")
now="$(value .spec.migManager.config.name),$(value .spec.mig.strategy)"
case "$verb" in
  apply)
    require_labels
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
