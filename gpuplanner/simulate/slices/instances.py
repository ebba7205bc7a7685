"""GPUs whose instances have places: what is held, cut, being made, and what is written about it."""

from __future__ import annotations

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.layout_changes import offer
from gpuplanner.simulate.slices.world import (
    CHANGING,
    DRAINING,
    NONE,
    ON,
    PROFILE_BITS,
    RECONFIGURING,
    WHOLE,
    Ints,
    Row,
    Slicing,
    Table,
    World,
)

BECOMES_WHOLE, IS_BACK, OTHERS = 0, 1, 2
"""What else than an instance may come, in place of a slice and counted from the last one on."""


@called
def open_placed(w: World) -> None:
    """Begin the run: every GPU is whole, or has the instances of its first layout."""
    w.status[0].slot = 0
    for gpu in range(len(w.gpus)):
        placed, instances = w.slicing.gpus[gpu], 0
        w.gpus[gpu].state = ON
        for start in range(w.slicing.cuts.shape[1]):
            profile = w.slicing.cuts[gpu, start]
            if profile != NONE:
                instances += 1
                w.free[gpu, profile] += 1
                placed.cut |= w.slicing.spans[profile] << start
        if instances == 0:
            w.free[gpu, WHOLE] = 1
        offer(w, gpu, 1)
        w.gpus[gpu].layout = NONE  # nothing was written yet
        touch(w.slicing, w.status[0], gpu)


@compiled
def touch(slicing: Slicing, s: Row, gpu: int) -> None:
    """Remember that a GPU changed in this instant."""
    if not slicing.gpus[gpu].touched:
        slicing.gpus[gpu].touched = 1
        slicing.touched[s.touched] = gpu
        s.touched += 1


@compiled
def taken(placed: Row) -> int:
    """Slices of a GPU, as bits, that jobs hold, that are being made, or that are drained."""
    slices: int = placed.held | placed.kept | placed.drain
    return slices


@compiled
def take_slices(w: World, job: int) -> None:
    """Choose the instance on the GPU where a job starts: the idle one that begins lowest."""
    gpu, profile, start = w.jobs[job].gpu, w.jobs[job].served, 0
    placed = w.slicing.gpus[gpu]
    while w.slicing.cuts[gpu, start] != profile or taken(w.slicing.gpus[gpu]) >> start & 1:
        start += 1
    w.jobs[job].slice = start
    placed.held |= w.slicing.spans[profile] << start
    placed.until = max(placed.until, w.status[0].now + w.jobs[job].limit)
    touch(w.slicing, w.status[0], gpu)


@compiled
def hold_whole(w: World, gpu: int, job: int) -> None:
    """Note that a job holds a whole GPU."""
    w.slicing.gpus[gpu].until = w.status[0].now + w.jobs[job].limit
    touch(w.slicing, w.status[0], gpu)


@compiled
def give_slices(w: World, job: int) -> None:
    """Give the instance of a job back; where slices are drained it is not offered again."""
    gpu, profile = w.jobs[job].gpu, w.jobs[job].served
    span = w.slicing.spans[profile] << w.jobs[job].slice
    w.slicing.gpus[gpu].held &= ~span
    touch(w.slicing, w.status[0], gpu)
    if not w.slicing.gpus[gpu].drain & span:
        offer_one(w.free, w.profiles, gpu, profile, 1)


@compiled
def offer_one(free: Ints, profiles: Table, gpu: int, profile: int, sign: int) -> None:
    """Offer one idle instance to jobs (sign 1), or withdraw it (-1)."""
    free[gpu, profile] += sign
    profiles[profile].available += sign
    profiles[profile].lowest = min(profiles[profile].lowest, gpu)


@compiled
def drain(slicing: Slicing, free: Ints, profiles: Table, s: Row, gpu: int, mask: int, sign: int) -> None:
    """Let nothing more start on some slices of a GPU (sign -1), or offer again what is idle there (1)."""
    for start in range(slicing.cuts.shape[1]):
        profile = slicing.cuts[gpu, start]
        span = slicing.spans[profile] << start if profile != NONE else 0
        if span & mask and not span & (slicing.gpus[gpu].held | slicing.gpus[gpu].kept):
            offer_one(free, profiles, gpu, profile, sign)
    slicing.gpus[gpu].drain = mask & len(slicing.loss) - 1 if sign < 0 else 0
    touch(slicing, s, gpu)


@compiled
def is_whole(free: Ints, placed: Row, gpu: int) -> bool:
    """Whether a GPU is not cut, and neither in use nor changing."""
    return bool(free[gpu, WHOLE] and not placed.making)


@called
def take_stock(w: World) -> None:
    """Count anew which of the GPUs that changed in this instant are on and wholly idle, reserved for nobody."""
    s = w.status[0]
    for rank in range(s.touched):
        gpu = w.slicing.touched[rank]
        placed = w.slicing.gpus[gpu]
        free = (
            placed.owner == NONE
            and not placed.making
            and not placed.rebooting
            and not taken(w.slicing.gpus[gpu])
        )
        idle = int(free and (placed.cut != 0 or is_whole(w.free, w.slicing.gpus[gpu], gpu)))
        if idle:
            placed.until = 0.0
        s.idle += idle - placed.idle
        placed.idle = idle


@compiled
def count_switch(placed: Row, s: Row, most: int) -> None:
    """Count a change of a GPU; all that begins in one instant is one change."""
    if placed.switches and placed.switched == s.now:
        return
    if placed.switched // 86400.0 != s.now // 86400.0:
        placed.switches = 0
    placed.switched = s.now
    placed.switches += 1
    if placed.switches == most:
        s.spent = s.now // 86400.0


@compiled
def may_switch(placed: Row, now: float, most: int) -> bool:
    """Whether a GPU may begin a change now."""
    if most == NONE or (placed.switches < most and most > 0):
        return True
    other_day = placed.switched // 86400.0 != now // 86400.0
    return bool(most > 0 and (other_day or placed.switched == now))


@compiled
def remove_idle(slicing: Slicing, free: Ints, profiles: Table, gpu: int, mask: int) -> int:
    """Remove the idle instances that overlap some slices; return how many."""
    placed, removed = slicing.gpus[gpu], 0
    for start in range(slicing.cuts.shape[1]):
        profile = slicing.cuts[gpu, start]
        if profile != NONE:
            span = slicing.spans[profile] << start
            if span & mask and not span & (placed.held | placed.kept):
                slicing.cuts[gpu, start] = NONE
                placed.cut &= ~span
                removed += 1
                if not span & placed.drain:
                    offer_one(free, profiles, gpu, profile, -1)
    return removed


@compiled
def place(slicing: Slicing, profiles: Table, gpu: int, profile: int, start: int) -> None:
    """Begin to make an instance."""
    placed, span = slicing.gpus[gpu], slicing.spans[profile] << start
    slicing.cuts[gpu, start] = profile
    placed.cut |= span
    placed.kept |= span
    placed.making += 1
    profiles[profile].coming += 1


@compiled
def come(slicing: Slicing, coming: Table, s: Row, gpu: int, start: int, at: float) -> None:
    """Write when an instance will have been made, or what else comes."""
    width = slicing.cuts.shape[1] + OTHERS
    slicing.gpus[gpu].ready = at
    s.coming = push(coming, s.coming, at, gpu * width + start)
    touch(slicing, s, gpu)


@called
def arrive(w: World) -> None:
    """Bring up what has been made first."""
    slices = w.slicing.cuts.shape[1]
    gpu, start = w.coming[0].who // (slices + OTHERS), w.coming[0].who % (slices + OTHERS)
    w.status[0].coming = pop(w.coming, w.status[0].coming)
    placed = w.slicing.gpus[gpu]
    touch(w.slicing, w.status[0], gpu)
    w.profiles[WHOLE].hopeless = 0
    if start == slices + IS_BACK:
        if placed.rebooting:  # else it was cut meanwhile, and its instances come by themselves
            placed.rebooting, w.gpus[gpu].leaving = 0, 0
            come_up(w, gpu)
        return
    placed.making -= 1
    if start == slices + BECOMES_WHOLE:
        w.free[gpu, WHOLE] = 1
        come_up(w, gpu)
        return
    profile = w.slicing.cuts[gpu, start]
    placed.kept &= ~(w.slicing.spans[profile] << start)
    w.profiles[profile].coming -= 1
    offer_one(w.free, w.profiles, gpu, profile, 1)


@compiled
def come_up(w: World, gpu: int) -> None:
    """Offer a GPU that is whole, or back as it was; or keep it for the job that it is reserved for."""
    offer(w, gpu, 1)
    if w.slicing.gpus[gpu].owner != NONE:
        withhold(w, gpu)


@compiled
def withhold(w: World, gpu: int) -> None:
    """Take a whole GPU that is idle off the offer, for the job that it is reserved for."""
    offer(w, gpu, -1)
    w.gpus[gpu].leaving = 1
    job = w.jobs[w.slicing.gpus[gpu].owner]
    job.pending -= 1
    w.status[0].ready += job.reserved > 0 and job.pending == 0


@called
def give_up(w: World, job: int) -> None:
    """Offer again what was reserved for a job."""
    for gpu in range(w.jobs[job].reserved - 1, len(w.gpus)):
        placed = w.slicing.gpus[gpu]
        if placed.owner == job:
            placed.owner = NONE
            touch(w.slicing, w.status[0], gpu)
            if w.gpus[gpu].leaving and not placed.rebooting:
                w.gpus[gpu].leaving = 0
                offer(w, gpu, 1)
            elif placed.drain:
                drain(w.slicing, w.free, w.profiles, w.status[0], gpu, -1, 1)
    w.status[0].ready -= w.jobs[job].pending == 0
    w.status[0].drains -= w.jobs[job].drains
    w.jobs[job].reserved = w.jobs[job].pending = w.jobs[job].drains = 0
    w.profiles[WHOLE].hopeless = 0


@called
def write_states(w: World) -> None:
    """Write the GPUs that changed in this instant, and forget that they did."""
    for rank in range(w.status[0].touched):
        gpu = w.slicing.touched[rank]
        placed = w.slicing.gpus[gpu]
        placed.touched = 0
        state = ON
        if placed.making or placed.rebooting:
            state = CHANGING if placed.cut & ~placed.kept and not placed.rebooting else RECONFIGURING
        elif placed.drain:
            state = DRAINING
        code = 0
        for start in range(w.slicing.cuts.shape[1]):
            profile = w.slicing.cuts[gpu, start]
            if profile != NONE and not (state == CHANGING and placed.kept >> start & 1):
                code |= profile << PROFILE_BITS * start
        if code != w.gpus[gpu].layout or state != w.gpus[gpu].state:
            w.gpus[gpu].layout, w.gpus[gpu].state = code, state
            row = w.status[0].logged
            w.log[row].gpu, w.log[row].at = gpu, w.status[0].now
            w.log[row].layout, w.log[row].state = code, state
            w.status[0].logged = row + 1
    w.status[0].touched = 0
