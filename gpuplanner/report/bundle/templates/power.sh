#!/usr/bin/env bash
# Powers a machine up or down. Write this script for your site: the shipped one only logs the call.
#
#   power.sh on MACHINE NODE CONFIG    power up; on the machine, before it takes jobs:
#                                        nvidia-mig-parted apply -f mig-parted.yaml -c CONFIG
#                                        static-gres.sh >gres.conf if slurmd has no NVML
#                                        slurmd -b -N NODE
#   power.sh off MACHINE NODE CONFIG   power down
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) power $*" >>"$here/power.log"
