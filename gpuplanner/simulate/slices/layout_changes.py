"""How GPUs change their layout: marked, drained, reconfigured, switched off and on."""

from __future__ import annotations

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.slices.whole_gpus import change_node
from gpuplanner.simulate.slices.world import DRAINING, NONE, OFF, ON, RECONFIGURING, WHOLE, World


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
            busyness = 0 if w.gpus[gpu].leaving else 1 + w.gpus[gpu].busy
            size = push(w.order, size, 2.0 * busyness - w.nodes[gpu // w.per_node].cut, -gpu)
    while size:
        gpu = -w.order[0].who
        size = pop(w.order, size)
        layout = w.gpus[gpu].layout
        leaves = 1 if w.layouts[layout].surplus > 0 else 0
        w.layouts[layout].surplus -= leaves
        if leaves != w.gpus[gpu].leaving:
            mark(w, gpu, leaves)
    if len(w.parked):
        wake(w)
    else:
        switch_on(w)
    for gpu in range(len(w.gpus)):
        if w.gpus[gpu].leaving and w.gpus[gpu].busy == 0 and w.gpus[gpu].state == ON:
            leave(w, gpu)
    if len(w.parked):
        cut_parked(w, False)


@compiled
def take_stock(w: World) -> None:
    """Count what every layout has above the target, and find the nodes with cut GPUs."""
    for layout in range(len(w.layouts)):
        w.layouts[layout].surplus = -w.targets[w.status[0].slot, layout]
    for node in range(len(w.nodes)):
        w.nodes[node].cut = 0
    for gpu in range(len(w.gpus)):
        layout = w.gpus[gpu].layout
        if layout != NONE:
            w.layouts[layout].surplus += 1
        if (layout == NONE and w.gpus[gpu].held != WHOLE and len(w.parked)) or layout > WHOLE:
            w.nodes[gpu // w.per_node].cut = 1


@compiled
def switch_on(w: World) -> None:
    """Fill deficits from GPUs that are off: whole ones from below, cut ones from above and on cut nodes."""
    first, size = 0, 0
    for cut in range(2):
        for gpu in range(len(w.gpus)):
            if w.gpus[gpu].state == OFF and w.nodes[gpu // w.per_node].cut == cut:
                w.order[size].who = gpu
                size += 1
    while first < size:
        layout = most_wanted(w)
        if layout == NONE:
            return
        if layout == WHOLE:
            w.layouts[WHOLE].present += 1
            come_up(w, w.order[first].who, WHOLE)
            first += 1
        else:
            size -= 1
            reconfigure(w, w.order[size].who, layout)


@compiled
def wake(w: World) -> None:
    """Fill deficits from parked GPUs: those with the layout, then those whose layout the plan gives up.

    Whole ones come from below, and from nodes without cut GPUs first, so that jobs on many find them side by side.
    """
    slot = w.status[0].slot
    for layout in range(len(w.layouts)):
        w.layouts[layout].kept = 0
    for cut in range(2):
        for gpu in range(len(w.gpus)):
            if w.gpus[gpu].state == OFF and w.nodes[gpu // w.per_node].cut == cut:
                layout = w.gpus[gpu].held
                if w.layouts[layout].present < w.targets[slot, layout]:
                    w.layouts[layout].present += 1
                    come_up(w, gpu, layout)
                else:
                    w.layouts[layout].kept += 1
    cut_parked(w, True)


@compiled
def cut_parked(w: World, given_up: bool) -> None:
    """Cut parked GPUs to what is most wanted, on cut nodes and from above: those the plan gives up, or any."""
    slot = w.status[0].slot
    for cut in range(1, -1, -1):
        for gpu in range(len(w.gpus) - 1, -1, -1):
            held = w.gpus[gpu].held
            if w.gpus[gpu].state != OFF or w.nodes[gpu // w.per_node].cut != cut:
                continue
            if given_up and w.layouts[held].kept <= w.parked[slot, held]:
                continue
            layout = most_wanted(w)
            if layout == NONE:
                return
            w.layouts[held].kept -= 1
            if layout == held:
                w.layouts[layout].present += 1
                come_up(w, gpu, layout)
            else:
                reconfigure(w, gpu, layout)


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
def mark(w: World, gpu: int, leaves: int) -> None:
    """Mark a GPU as leaving its layout, so that nothing new starts on it, or withdraw the mark."""
    sign = 1 if leaves else -1
    w.gpus[gpu].leaving = leaves
    w.layouts[w.gpus[gpu].layout].present -= sign
    if w.gpus[gpu].state == ON:
        offer(w, gpu, -sign)
        note(w, gpu, DRAINING if leaves else ON)


@compiled
def leave(w: World, gpu: int) -> None:
    """Send an idle GPU that was marked to the layout most wanted, or off if none is."""
    w.gpus[gpu].leaving = 0
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = 0
    layout = most_wanted(w)
    if layout == NONE:
        w.gpus[gpu].held = w.gpus[gpu].layout if len(w.parked) else WHOLE
        w.gpus[gpu].layout, w.gpus[gpu].state = NONE, OFF
        note(w, gpu, OFF)
    else:
        reconfigure(w, gpu, layout)


@compiled
def reconfigure(w: World, gpu: int, layout: int) -> None:
    """Begin to give an empty GPU a layout."""
    before = w.gpus[gpu].layout
    seconds = w.change_s[w.gpus[gpu].held if before == NONE else before, layout]
    w.gpus[gpu].layout, w.gpus[gpu].state = layout, RECONFIGURING
    w.layouts[layout].present += 1
    w.status[0].coming = push(w.coming, w.status[0].coming, w.status[0].now + seconds, gpu)
    note(w, gpu, RECONFIGURING)


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
    """Switch a GPU on in a layout, with nothing running."""
    w.gpus[gpu].layout, w.gpus[gpu].state = layout, ON
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = w.instances[layout, profile]
    offer(w, gpu, 1)
    note(w, gpu, ON)


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
