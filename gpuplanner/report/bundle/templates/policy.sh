#!/usr/bin/env bash
# Points the ClusterPolicy at ConfigMap @CONFIG_MAP@ for the MIG manager, and sets MIG strategy mixed, with which the
# device plugin advertises instances by profile.
#
#   bash FILE apply     create the ConfigMap; save the present settings in an annotation of the ClusterPolicy; change them
#   bash FILE configmap create the ConfigMap alone, where Helm, Argo CD or Flux manages the ClusterPolicy
#   bash FILE copied    print the configurations that 'apply' copies from the present ConfigMaps; changes nothing
#   bash FILE verify    compare the settings with the plan; changes nothing
#   bash FILE rollback  restore the saved settings, then delete the ConfigMap; while a node is labelled with one of its
#                       configurations, exit with 1 and change nothing
#
# Cluster-wide: the ConfigMap replaces yours for all nodes, the operator restarts its pods on all GPU nodes, and nodes
# that ran strategy single advertise nvidia.com/mig-* instead of nvidia.com/gpu. All change bundles share the ConfigMap:
# 'apply' keeps the configurations of earlier bundles. It copies each configuration that a node is labelled with, and that
# configmap.yaml lacks, from the ConfigMap that the ClusterPolicy names today, else from the one named before the first
# bundle. If both lack one, nothing changes: copy it into configmap.yaml, and run again.
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

configs_of() { # CONFIGMAP: its configurations
  kubectl get configmap "$1" --namespace "$namespace" --ignore-not-found -o 'go-template={{index .data "config.yaml"}}'
}

labels() { # configurations that nodes are labelled with
  kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.labels.nvidia\.com/mig\.config}{"\n"}{end}' | sort -u
}

find_copied() { # sets copied, the configurations to copy, and missing, those that no ConfigMap has
  local configs label lacking='' source text
  configs=$(names '      ' <"$here/configmap.yaml")
  # Rollbacks of earlier bundles need the configurations that are in the ConfigMap already, labelled or not.
  for label in $(labels) $(configs_of "$config_map" | names '  '); do
    if ! grep -qxF -- "$label" <<<"$configs"; then lacking+=" $label"; fi
  done
  copied='' missing=''
  for source in "${now%,*}" "$config_map" "${before%,*}"; do
    text=$(configs_of "${source:-default-mig-parted-config}" | awk -v names="$lacking " -v copied=" $(names '  ' <<<"$copied" | tr '\n' ' ')" '
      /^[^ #]/ { on = 0 }
      /^  [^ #-]/ { name = $1; gsub(/["\047:]/, "", name); on = index(names, " " name " ") && !index(copied, " " name " ") }
      on')
    if [[ -n "$text" ]]; then copied+="${copied:+$'\n'}$text"; fi
  done
  configs=$(names '  ' <<<"$copied")
  for label in $lacking; do
    if ! grep -qxF -- "$label" <<<"$configs"; then missing+=" $label"; fi
  done
}

write_configmap() {
  find_copied
  [[ -z "$missing" ]] || fail "Fix $config_map: nodes have labels of configurations that neither configmap.yaml nor a\
 ConfigMap of the cluster has:$missing. Nothing was changed."
  {
    cat "$here/configmap.yaml"
    if [[ -n "$copied" ]]; then sed 's/^/    /' <<<"$copied"; fi
  } | kubectl apply -f -
}

roll_back() {
  local label ours earlier=${before:-$now} used=''
  if [[ -z "$before" && "$now" == "$config_map,"* ]]; then
    fail "Fix $policy: it names $config_map, but 'apply' did not set that. Set migManager.config.name and mig.strategy back\
 where you manage them (Helm, Argo CD, Flux), sync, and run the same command again. Nothing was changed."
  fi
  ours=$(configs_of "$config_map" | names '  ')
  earlier=${earlier%,*}
  earlier=$(configs_of "${earlier:-default-mig-parted-config}" | names '  ')
  for label in $(labels); do
    # The operator labels nodes all-disabled by itself.
    if [[ "$label" != all-disabled ]] && grep -qxF -- "$label" <<<"$ours" && ! grep -qxF -- "$label" <<<"$earlier"; then
      used+=" $label"
    fi
  done
  [[ -z "$used" ]] || fail "$config_map stays: nodes are labelled with configurations that only it has:$used. Roll their\
 change back first. Nothing was changed."
  if [[ -n "$before" ]]; then
    set_to "${before%,*}" "${before##*,}"
    kubectl annotate clusterpolicies.nvidia.com "$policy" "$record-" >/dev/null
  elif [[ -z "$ours" ]]; then
    echo "$policy: nothing to roll back"
  fi
  kubectl delete configmap "$config_map" --namespace "$namespace" --ignore-not-found
}

verb="${1:-}"
[[ $# == 1 && "$verb" =~ ^(apply|configmap|copied|verify|rollback)$ ]] || {
  echo "usage: bash $0 apply|configmap|copied|verify|rollback" >&2
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
  configmap) write_configmap ;;
  apply)
    write_configmap
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
  rollback) roll_back ;;
esac
