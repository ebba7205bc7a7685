#!/usr/bin/env bash
# Switches a machine, and is your own: as it stands it only writes down what it was asked for.
#
#   power.sh on MACHINE NODE CONFIG    start it; there, before it takes jobs:
#                                        nvidia-mig-parted apply -f mig-parted.yaml -c CONFIG
#                                        renew gres.conf by static-gres.sh where slurmd has no NVML
#                                        slurmd -b -N NODE
#   power.sh off MACHINE NODE CONFIG   stop it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) power $*" >>"$here/power.log"
