"""Who changes a fleet, and who pays for it: words that scenarios, boards and inventories share."""

from __future__ import annotations

PATHS = ("nvml", "parted", "operator")
"""Ways to change a layout: NVML instance by instance, mig-parted, the MIG manager of the GPU operator."""
MADE_BY = {path: path for path in PATHS} | {"dra": "nvml", "autoscaler": "parted", "slurm": "parted"}
"""Who changes a fleet, and by which of :data:`PATHS` it cuts: a DRA driver makes instances one by one; a node that an
autoscaler or Slurm's power saving starts is cut by mig-parted before it takes jobs."""
EMPTIED = {"operator": "node", "slurm": "node", "autoscaler": "node"}
"""What a path empties for a change: a node. Others empty the GPU alone."""
OWNED, RESERVED, RENTED = "owned", "reserved", "rented"
OWNERSHIPS = (OWNED, RESERVED, RENTED)
"""Who pays for a GPU that is not used: its owner, who reserved it for a term, or nobody once it is given back."""
