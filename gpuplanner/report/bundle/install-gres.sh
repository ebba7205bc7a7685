#!/usr/bin/env bash
# Put the GPUs of some nodes into slurm.conf: rewrites Gres in the NodeName lines that are there, and nothing else.
# (Adding our lines to yours would be fatal: slurmctld does not start where a NodeName stands twice.)
#
#   bash install-gres.sh [--dry-run] LINES [NODE...]    print the difference, and unless --dry-run put it in place
#
# LINES is slurm-<time>.conf of this folder; without NODE all its nodes are taken. Lines of several nodes (n[1-4]) are
# parted where they come to differ; shards, MPS and whatever else is no gpu stays. The old file is kept beside the new
# one, as slurm.conf.before-gpuplanner. Where slurm.conf is neither shared nor served to the nodes (configless), copy it
# to them afterwards: COPY, run as COPY FILE.
#
# Environment: FILE, where the lines of nodes stand in a file that slurm.conf includes.

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
function value(line, key,    at, rest) { # of KEY=VALUE on a line, whatever its case
  at = match(tolower(line), "(^|[ \t])" key "[ \t]*=[ \t]*")
  if (!at) return ""
  rest = substr(line, at + RLENGTH)
  sub(/[ \t].*/, "", rest)
  return rest
}
function merged(old, gpus,    n, items, i, found) { # our GPUs, and what else the node has
  n = split(old, items, ",")
  found = gpus
  for (i = 1; i <= n; i++) if (tolower(items[i]) !~ /^gpu(:|$)/) found = found (found == "" ? "" : ",") items[i]
  return found
}
function listed(command,    line, found) { # what a command prints, joined by blanks
  found = ""
  while ((command | getline line) > 0) found = found (found == "" ? "" : " ") line
  if (close(command)) { print command ": failed" >"/dev/stderr"; failed = 1 }
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
  if (expression !~ /^[][A-Za-z0-9_.,-]+$/) { print "NodeName=" expression ": not understood" >"/dev/stderr"; failed = 1; return }
  n = expression ~ /[[,]/ ? split(listed("scontrol show hostnames " "\"" expression "\""), hosts, " ") : split(expression, hosts, " ")
  old = value(line, "gres") == "" ? usual : value(line, "gres")
  count = differs = 0
  for (i = 1; i <= n; i++) {
    seen[hosts[i]] = 1
    gres = (hosts[i] in want) ? merged(old, want[hosts[i]]) : old
    if (gres != old) differs = 1
    if (!(gres in groups)) order[++count] = gres
    groups[gres] = groups[gres] (groups[gres] == "" ? "" : ",") hosts[i]
  }
  if (!differs) { print raw; return }
  if (count > 1 && line ~ /[Nn]ode([Aa]ddr|[Hh]ost[Nn]ame)|[Pp]ort[ \t]*=[^ \t]*\[/) {
    print "NodeName=" expression ": has addresses of its own and would have to be parted; part it first" >"/dev/stderr"
    failed = 1
    return
  }
  for (i = 1; i <= count; i++) {
    if (order[i] == "" && usual != "") {
      print groups[order[i]] ": would get the Gres of NodeName=DEFAULT; take it from there first" >"/dev/stderr"
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
  raw = held_raw (held_raw == "" ? "" : "\n") $0
  bare = $0
  comment = ""
  if (match(bare, /[ \t]*#.*/)) { comment = substr(bare, RSTART); bare = substr(bare, 1, RSTART - 1) }
  if (bare ~ /\\$/) { held = held substr(bare, 1, length(bare) - 1) " "; held_raw = raw; next }
  if (tolower(bare) ~ /^[ \t]*grestypes[ \t]*=.*gpu/) typed = 1
  rewrite(held bare, raw)
  held = held_raw = ""
}
END {
  for (node in want) if (!(node in seen)) {
    print node ": has no NodeName line here; if an included file has it, name that as FILE" >"/dev/stderr"
    failed = 1
  }
  if (!typed && !failed) print "note: GresTypes=gpu is not set here; without it Slurm counts no GPUs" >"/dev/stderr"
  exit failed
}
' "$lines" "$conf" >"$new"

diff -u --label "$conf" --label "$conf, planned" "$conf" "$new" || true
if [[ "$dry" == no ]] && ! cmp -s "$conf" "$new"; then
  cp -p -- "$conf" "$conf.before-gpuplanner"
  mv -- "$new" "$conf"
  ${COPY:-true} "$conf"
fi
