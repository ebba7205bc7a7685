label_of() { # NODE KEY
  kubectl get node "$1" -o "jsonpath={.metadata.labels.nvidia\.com/$2}"
}

note_of() { # NODE KEY
  kubectl get node "$1" -o "jsonpath={.metadata.annotations.$2}"
}

note() { # NODE KEY=VALUE, or KEY- to remove it
  kubectl annotate node "$1" --overwrite "$2" >/dev/null
}

devices_of() { # NODE: a line for each GPU and MIG instance that the DRA driver publishes
  local template='{{range .items}}{{range .spec.devices}}{{if .attributes.profile}}'
  template+='nvidia.com/mig-{{.attributes.profile.string}}{{else}}nvidia.com/gpu{{end}}{{"\n"}}{{end}}{{end}}'
  kubectl get resourceslices --field-selector "spec.nodeName=$1,spec.driver=gpu.nvidia.com" \
    -o "go-template=$template" 2>/dev/null | tr + . || true
}

offers_of() { # NODE: GPU resources of its device plugin, or of its DRA driver, sorted
  local template='{{range $key, $value := .status.allocatable}}{{$key}}={{$value}}{{"\n"}}{{end}}'
  {
    kubectl get node "$1" -o "go-template=$template"
    devices_of "$1" | LC_ALL=C sort | uniq -c | awk '{ print $2 "=" $1 }'
  } | { grep -E '^nvidia\.com/(gpu|mig-[^=]*)=[1-9]' || true; } | LC_ALL=C sort | paste -s -d ' ' -
}

gpu_pods() { # NODE: its pods with a GPU, a MIG instance or a resource claim
  local template='{{range .items}}{{$name := printf "%s/%s" .metadata.namespace .metadata.name}}'
  template+='{{range .spec.resourceClaims}}{{$name}} claim{{"\n"}}{{end}}'
  local containers
  for containers in containers initContainers; do
    template+="{{range .spec.$containers}}"
    template+='{{if .resources.limits}}{{range $key, $value := .resources.limits}}'
    template+='{{$name}} {{$key}}{{"\n"}}{{end}}{{end}}{{end}}'
  done
  template+='{{end}}'
  kubectl get pods --all-namespaces -o "go-template=$template" \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed" |
    { grep -E ' (nvidia\.com/(gpu|mig-)|claim$)' || true; } | awk '{ print $1 }' | LC_ALL=C sort -u | paste -s -d ' ' -
}

cordon() { # NODE: mark our cordon, so that we never remove somebody else's
  if [[ -z "$(kubectl get node "$1" -o 'jsonpath={.spec.unschedulable}')" ]]; then
    note "$1" "$ours=@NAME@"
    kubectl cordon "$1"
  fi
}

cordoned_by_us() { # NODE: not by a person, nor by another change bundle
  [[ "$(note_of "$1" "$ours")" == '@NAME@' ]]
}

uncordon() { # NODE
  if cordoned_by_us "$1"; then
    kubectl uncordon "$1"
    note "$1" "$ours-"
  fi
}
