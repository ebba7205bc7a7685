#!/usr/bin/env bash
# Lets the MIG manager cut by ConfigMap @CONFIG_MAP@, and the device plugin offer instances by profile (strategy mixed).
#
#   bash FILE apply     what was set before is written down in an annotation of the ClusterPolicy
#   bash FILE verify    say what is set; changes nothing
#   bash FILE rollback  set what was set before
#
# The ConfigMap takes the place of yours for all nodes. So 'apply' first looks whether it holds every configuration
# that some node is labelled with; what it lacks, copy into configmap.yaml from your own, and begin again.
# Environment: CLUSTER_POLICY (the one that there is).

set -euo pipefail

readonly config_map='@CONFIG_MAP@' namespace='@NAMESPACE@' record='gpuplanner-previous'

@COMMON@
value() { # JSONPATH of the ClusterPolicy
  kubectl get clusterpolicies.nvidia.com "$policy" -o "jsonpath={$1}"
}

set_to() { # NAME STRATEGY
  kubectl patch clusterpolicies.nvidia.com "$policy" --type merge --patch \
    "{\"spec\": {\"mig\": {\"strategy\": \"$2\"}, \"migManager\": {\"config\": {\"name\": \"$1\"}}}}"
}

require_labels() { # every configuration that nodes are labelled with must stay there
  local held label faults=''
  held=$(kubectl get configmap "$config_map" --namespace "$namespace" --ignore-not-found \
    -o 'go-template={{index .data "config.yaml"}}' | sed -n "s/^  [\"']\{0,1\}\([A-Za-z0-9._-]*\)[\"']\{0,1\}:.*/\1/p")
  [[ -n "$held" ]] || fail "ConfigMap $namespace/$config_map is not there: kubectl apply it first."
  for label in $(kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.labels.nvidia\.com/mig\.config}{"\n"}{end}'); do
    grep -qxF -- "$label" <<<"$held" || faults+=" $label"
  done
  [[ -z "$faults" ]] || fail "Nodes are labelled with what $config_map lacks:$faults. Nothing was changed."
}

verb="${1:-}"
[[ $# == 1 && "$verb" =~ ^(apply|verify|rollback)$ ]] || {
  echo "usage: bash $0 apply|verify|rollback" >&2
  exit 2
}
policy="${CLUSTER_POLICY:-$(kubectl get clusterpolicies.nvidia.com -o 'jsonpath={.items[*].metadata.name}')}"
[[ -n "$policy" && "$policy" != *' '* ]] || fail "Expected one ClusterPolicy, found '$policy'; name it in CLUSTER_POLICY."
readonly verb policy
before=$(value ".metadata.annotations.$record")
now="$(value .spec.migManager.config.name),$(value .spec.mig.strategy)"
case "$verb" in
  apply)
    require_labels
    if [[ "$now" == "$config_map,mixed" ]]; then
      echo "$policy: is so already"
    else
      if [[ -z "$before" ]]; then
        kubectl annotate clusterpolicies.nvidia.com "$policy" --overwrite "$record=$now" >/dev/null
      fi
      set_to "$config_map" mixed
    fi
    ;;
  verify)
    [[ "$now" == "$config_map,mixed" ]] || fail "$policy: expected $config_map,mixed, it says $now."
    echo "$policy: $now"
    ;;
  rollback)
    if [[ -z "$before" ]]; then
      echo "$policy: nothing to take back"
    else
      set_to "${before%,*}" "${before##*,}"
      kubectl annotate clusterpolicies.nvidia.com "$policy" "$record-" >/dev/null
    fi
    ;;
esac
