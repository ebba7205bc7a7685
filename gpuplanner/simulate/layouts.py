"""How GPUs change their layout: marked, drained, reconfigured, switched off and on."""

from __future__ import annotations

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.nodes import change_node
from gpuplanner.simulate.world import (
    DRAINING,
    HALTS,
    LEAVES,
    NONE,
    OFF,
    ON,
    RECONFIGURING,
    STAYS,
    WHOLE,
    World,
)


@compiled
def open_fleet(w: World) -> None:
    """Begin the first slot: every GPU is in its first layout."""
    w.status[0].slot = 0
    for gpu in range(len(w.gpus)):
        layout = w.gpus[gpu].layout
        if layout == NONE:
            w.gpus[gpu].state = OFF
            note(w, gpu, OFF)
        else:
            w.layouts[layout].present += 1
            come_up(w, gpu, layout)


@compiled
def begin_slot(w: World) -> None:
    """Compare the fleet with the target of the slot that begins: mark, withdraw marks, switch on.

    Of a layout in surplus these leave first: GPUs already leaving; those with the fewest busy slices; those
    on a node that has cut GPUs, so that other nodes stay whole; the highest number.
    """
    w.status[0].slot += 1
    take_stock(w)
    size = 0
    for gpu in range(len(w.gpus)):
        if w.gpus[gpu].layout != NONE:
            busyness = 0 if w.gpus[gpu].leaving == LEAVES else 1 + w.gpus[gpu].busy
            size = push(w.order, size, 2.0 * busyness - w.nodes[gpu // w.per_node].cut, -gpu)
    while size:
        gpu = -w.order[0].who
        size = pop(w.order, size)
        layout = w.gpus[gpu].layout
        leaves = w.layouts[layout].surplus > 0
        w.layouts[layout].surplus -= leaves
        if leaves != (w.gpus[gpu].leaving == LEAVES):
            mark(w, gpu, leaves)
    switch_on(w)
    for gpu in range(len(w.gpus)):
        if w.gpus[gpu].leaving == LEAVES and w.gpus[gpu].busy == 0 and w.gpus[gpu].state == ON:
            leave(w, gpu)


@compiled
def take_stock(w: World) -> None:
    """Count what every layout has above the target and above what should have it; find nodes with cut GPUs."""
    slot, others = w.status[0].slot, len(w.gpus)
    for layout in range(len(w.layouts)):
        w.layouts[layout].surplus = -w.targets[slot, layout]
        w.layouts[layout].spare = -w.aims[slot, layout]
        others -= w.aims[slot, layout]
    # GPUs that no layout is foreseen for are whole.
    w.layouts[WHOLE].spare -= others
    for node in range(len(w.nodes)):
        w.nodes[node].cut = 0
    for gpu in range(len(w.gpus)):
        layout = w.gpus[gpu].layout
        w.layouts[w.gpus[gpu].has].spare += 1
        if layout != NONE:
            w.layouts[layout].surplus += 1
            if layout != WHOLE:
                w.nodes[gpu // w.per_node].cut = 1


@compiled
def switch_on(w: World) -> None:
    """Fill deficits from GPUs that are off: with their layouts at once, others by giving them another one."""
    for cut in range(2):
        for rank in range(len(w.gpus)):
            # Whole ones from below, cut ones from above.
            gpu = len(w.gpus) - 1 - rank if cut else rank
            layout = w.gpus[gpu].has
            if w.gpus[gpu].state == OFF and cut == (layout != WHOLE) and is_short(w, layout):
                w.layouts[layout].present += 1
                come_up(w, gpu, layout)
    layout = most_wanted(w)
    while layout != NONE:
        gpu = donor(w, layout)
        if gpu == NONE:
            return
        w.layouts[w.gpus[gpu].has].spare -= 1
        withdraw(w, gpu)
        reconfigure(w, gpu, layout)
        layout = most_wanted(w)


@compiled
def is_short(w: World, layout: int) -> bool:
    """Whether more GPUs should be on with a layout."""
    return bool(w.layouts[layout].present < w.targets[w.status[0].slot, layout])


@compiled
def donor(w: World, layout: int) -> int:
    """Idle GPU that is to have another layout; NONE if there is none.

    Those come first that have a layout which more have than should; then those that are off; then, to be cut,
    those on nodes with cut GPUs and with high numbers, to be made whole, the contrary.
    """
    best, first = NONE, -1
    for rank in range(len(w.gpus)):
        gpu = rank if layout == WHOLE else len(w.gpus) - 1 - rank
        leaves = w.gpus[gpu].leaving == LEAVES and w.gpus[gpu].busy == 0 and w.gpus[gpu].state == ON
        if w.gpus[gpu].state == OFF or leaves:
            beside = w.nodes[gpu // w.per_node].cut == (layout != WHOLE)
            value = 4 * (w.layouts[w.gpus[gpu].has].spare > 0) + 2 * (not leaves) + beside
            if value > first:
                best, first = gpu, value
    return best


@compiled
def most_wanted(w: World) -> int:
    """Layout most in deficit against the target in force, lowest number first; NONE if none is."""
    best, deficit = NONE, 0
    for layout in range(len(w.layouts)):
        missing = w.targets[w.status[0].slot, layout] - w.layouts[layout].present
        if missing > deficit:
            best, deficit = layout, missing
    return best


@compiled
def mark(w: World, gpu: int, leaves: bool) -> None:
    """Mark a GPU as leaving its layout, so that nothing new starts on it, or withdraw the mark."""
    halts = w.nodes[gpu // w.per_node].rebooting and w.gpus[gpu].state == ON
    w.gpus[gpu].leaving = LEAVES if leaves else HALTS if halts else STAYS
    w.layouts[w.gpus[gpu].layout].present -= 1 if leaves else -1
    if w.gpus[gpu].state == ON and not halts:
        offer(w, gpu, -1 if leaves else 1)
        note(w, gpu, DRAINING if leaves else ON)


@compiled
def leave(w: World, gpu: int) -> None:
    """Send an idle GPU that was marked to the layout most wanted, or off if none is."""
    if w.gpus[gpu].leaving == LEAVES:
        withdraw(w, gpu)
        layout = most_wanted(w)
        if layout == NONE:
            w.gpus[gpu].layout, w.gpus[gpu].state = NONE, OFF
            note(w, gpu, OFF)
        else:
            reconfigure(w, gpu, layout)


@compiled
def withdraw(w: World, gpu: int) -> None:
    """Take an idle GPU out of use."""
    w.gpus[gpu].leaving = STAYS
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = 0


@compiled
def reconfigure(w: World, gpu: int, layout: int) -> None:
    """Begin to give an empty GPU a layout. For MIG mode its node may have to reboot, and to be drained before."""
    before, seconds = w.gpus[gpu].has, w.change_s[w.gpus[gpu].has, layout]
    w.gpus[gpu].layout, w.gpus[gpu].state = layout, RECONFIGURING
    w.gpus[gpu].has = layout
    w.layouts[layout].present += 1
    note(w, gpu, RECONFIGURING)
    if w.reboot_s > 0.0 and (before == WHOLE) != (layout == WHOLE):
        w.gpus[gpu].waits, w.gpus[gpu].change = 1, seconds
        halt(w, gpu // w.per_node)
    else:
        w.status[0].coming = push(w.coming, w.status[0].coming, w.status[0].now + seconds, gpu)


@compiled
def halt(w: World, node: int) -> None:
    """Drain what is on of a node that is to reboot."""
    w.status[0].rebooting += 1 - w.nodes[node].rebooting
    w.nodes[node].rebooting = 1
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        if w.gpus[gpu].state == ON and w.gpus[gpu].leaving == STAYS:
            w.gpus[gpu].leaving = HALTS
            offer(w, gpu, -1)
            note(w, gpu, DRAINING)


@compiled
def reboot_nodes(w: World) -> None:
    """Reboot the nodes that are drained for it, once nothing runs or changes there; their changes are made then."""
    for node in range(len(w.nodes)):
        if w.nodes[node].rebooting and at_rest(w, node):
            reboot(w, node)


@compiled
def at_rest(w: World, node: int) -> bool:
    """Whether nothing runs or changes on a node."""
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        if w.gpus[gpu].busy or (w.gpus[gpu].state == RECONFIGURING and not w.gpus[gpu].waits):
            return False
    return True


@compiled
def reboot(w: World, node: int) -> None:
    """Take a node out of service for a reboot, and those of its GPUs longer that change."""
    w.status[0].rebooting -= 1
    w.nodes[node].rebooting = 0
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        if w.gpus[gpu].waits or w.gpus[gpu].leaving == HALTS:
            ready = w.status[0].now + w.reboot_s + (w.gpus[gpu].change if w.gpus[gpu].waits else 0.0)
            if w.gpus[gpu].leaving == HALTS:
                withdraw(w, gpu)
                w.gpus[gpu].state = RECONFIGURING
                note(w, gpu, RECONFIGURING)
            w.gpus[gpu].waits = 0
            w.status[0].coming = push(w.coming, w.status[0].coming, ready, gpu)


@compiled
def finish_reconfiguration(w: World) -> None:
    """Bring up the GPU whose reconfiguration is done first; if marked meanwhile, it goes on at once."""
    gpu = w.coming[0].who
    w.status[0].coming = pop(w.coming, w.status[0].coming)
    if w.gpus[gpu].leaving:
        leave(w, gpu)
    else:
        come_up(w, gpu, w.gpus[gpu].layout)


@compiled
def come_up(w: World, gpu: int, layout: int) -> None:
    """Switch a GPU on in a layout that it has, with nothing running."""
    w.gpus[gpu].layout, w.gpus[gpu].state = layout, ON
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = w.instances[layout, profile]
    offer(w, gpu, 1)
    note(w, gpu, ON)
    if w.nodes[gpu // w.per_node].rebooting:
        halt(w, gpu // w.per_node)


@compiled
def offer(w: World, gpu: int, sign: int) -> None:
    """Offer the idle instances of a GPU to jobs (sign 1), or withdraw them (-1)."""
    for profile in range(len(w.profiles)):
        if w.free[gpu, profile]:
            w.profiles[profile].available += sign * w.free[gpu, profile]
            w.profiles[profile].lowest = min(w.profiles[profile].lowest, gpu)
    if w.free[gpu, WHOLE]:
        node = gpu // w.per_node
        w.nodes[node].lowest = min(w.nodes[node].lowest, gpu)
        change_node(w, node, sign)


@compiled
def note(w: World, gpu: int, state: int) -> None:
    """Write a change of state."""
    row = w.status[0].logged
    w.log[row].gpu, w.log[row].at = gpu, w.status[0].now
    w.log[row].layout, w.log[row].state = w.gpus[gpu].layout, state
    w.status[0].logged = row + 1
