#!/usr/bin/env bash
# Update the GPU Gres of nodes in slurm.conf. Only Gres in existing NodeName lines changes.
# (Do not append these lines to slurm.conf: slurmctld does not start if a NodeName appears twice.)
#
#   bash install-gres.sh [--dry-run] LINES [NODE...]    print the difference and write it; --dry-run only prints
#
# LINES is slurm-<time>.conf of this folder; without NODE, all its nodes are updated. A line for several nodes (n[1-4])
# is split where their Gres differ. Shards, MPS and other Gres stay. The earlier file is saved beside the new one as
# slurm.conf.before-gpuplanner.
#
# Environment:
#   FILE  the file with the NodeName lines, if slurm.conf includes them from another file
#   COPY  run as COPY FILE afterwards, to copy slurm.conf to nodes that neither share it nor are configless

set -euo pipefail

dry=no
if [[ "${1:-}" == --dry-run ]]; then
  dry=yes
  shift
fi
readonly lines="${1:?usage: bash $0 [--dry-run] LINES [NODE...]}" dry
shift
conf="${FILE:-${SLURM_CONF:-$(scontrol show config | awk '$1 == "SLURM_CONF" { print $3 }')}}"
conf=$(readlink -f -- "$conf")
readonly conf
new=$(mktemp "$conf.XXXXXX")
trap 'rm -f -- "$new"' EXIT
cp -p -- "$conf" "$new"

awk -v chosen=" $* " '
function value(line, key,    at, rest) { # of KEY=VALUE on a line, in any case
  at = match(tolower(line), "(^|[ \t])" key "[ \t]*=[ \t]*")
  if (!at) return ""
  rest = substr(line, at + RLENGTH)
  sub(/[ \t].*/, "", rest)
  return rest
}
function merged(old, gpus,    n, items, i, found) { # the planned GPUs and the other Gres of the node
  n = split(old, items, ",")
  found = gpus
  for (i = 1; i <= n; i++) if (tolower(items[i]) !~ /^gpu(:|$)/) found = found (found == "" ? "" : ",") items[i]
  return found
}
function listed(command,    line, found) { # output lines of a command, joined by blanks
  found = ""
  while ((command | getline line) > 0) found = found (found == "" ? "" : " ") line
  if (close(command)) { print "Fix " command ": it failed" >"/dev/stderr"; failed = 1 }
  return found
}
function node_line(line, names, gres,    at, old) {
  at = match(tolower(line), /(^|[ \t])nodename[ \t]*=[ \t]*[^ \t]+/)
  line = substr(line, 1, at - 1) "NodeName=" names substr(line, at + RLENGTH)
  sub(/^[ \t]+/, "", line)
  if (match(tolower(line), /[ \t]gres[ \t]*=[ \t]*[^ \t]+/))
    return substr(line, 1, RSTART - 1) (gres == "" ? "" : " Gres=" gres) substr(line, RSTART + RLENGTH)
  return line (gres == "" ? "" : " Gres=" gres)
}
function rewrite(line, raw,    expression, hosts, n, i, old, gres, groups, order, count, differs) {
  expression = value(line, "nodename")
  if (expression == "" || toupper(expression) == "DEFAULT") {
    if (expression != "" && value(line, "gres") != "") usual = value(line, "gres")
    print raw
    return
  }
  if (expression !~ /^[][A-Za-z0-9_.,-]+$/) {
    print "Fix NodeName=" expression ": cannot read this expression" >"/dev/stderr"
    failed = 1
    return
  }
  n = expression ~ /[[,]/ ? split(listed("scontrol show hostnames " "\"" expression "\""), hosts, " ") : split(expression, hosts, " ")
  old = value(line, "gres") == "" ? usual : value(line, "gres")
  count = differs = 0
  for (i = 1; i <= n; i++) {
    listed_node[hosts[i]] = 1
    gres = (hosts[i] in want) ? merged(old, want[hosts[i]]) : old
    if (gres != old) differs = 1
    if (!(gres in groups)) order[++count] = gres
    groups[gres] = groups[gres] (groups[gres] == "" ? "" : ",") hosts[i]
  }
  if (!differs) { print raw; return }
  if (count > 1 && line ~ /[Nn]ode([Aa]ddr|[Hh]ost[Nn]ame)|[Pp]ort[ \t]*=[^ \t]*\[/) {
    print "Fix NodeName=" expression ": the line has addresses and must be split; split it by hand first" >"/dev/stderr"
    failed = 1
    return
  }
  for (i = 1; i <= count; i++) {
    if (order[i] == "" && usual != "") {
      print "Fix " groups[order[i]] ": it would inherit Gres from NodeName=DEFAULT; remove Gres there first" >"/dev/stderr"
      failed = 1
    }
    gres = groups[order[i]]
    if (count == 1) gres = expression
    else if (gres ~ /,/) gres = listed("scontrol show hostlist " "\"" gres "\"")
    print node_line(line, gres, order[i]) (i == count ? comment : "")
  }
}
FNR == NR { # LINES
  sub(/#.*/, "")
  node = value($0, "nodename")
  if (node != "" && (chosen == "  " || index(chosen, " " node " "))) want[node] = value($0, "gres")
  next
}
{
  raw = pending_raw (pending_raw == "" ? "" : "\n") $0
  bare = $0
  comment = ""
  if (match(bare, /[ \t]*#.*/)) { comment = substr(bare, RSTART); bare = substr(bare, 1, RSTART - 1) }
  if (bare ~ /\\$/) { pending = pending substr(bare, 1, length(bare) - 1) " "; pending_raw = raw; next }
  if (tolower(bare) ~ /^[ \t]*grestypes[ \t]*=.*gpu/) typed = 1
  rewrite(pending bare, raw)
  pending = pending_raw = ""
}
END {
  for (node in want) if (!(node in listed_node)) {
    print "Fix " node ": it has no NodeName line here; if an included file has it, set FILE=PATH" >"/dev/stderr"
    failed = 1
  }
  if (!typed && !failed) print "note: GresTypes=gpu is not set here; Slurm counts no GPUs without it" >"/dev/stderr"
  exit failed
}
' "$lines" "$conf" >"$new"

diff -u --label "$conf" --label "$conf, planned" "$conf" "$new" || true
if [[ "$dry" == no ]] && ! cmp -s "$conf" "$new"; then
  cp -p -- "$conf" "$conf.before-gpuplanner"
  mv -- "$new" "$conf"
  ${COPY:-true} "$conf"
fi
