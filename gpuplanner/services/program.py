"""The integer program behind joint sizing: first the fewest GPUs, then the fewest compute slices on them.

Columns, all whole numbers: instances of each option, GPUs of each layout. The rows of floors say nothing that
whole instances would not, but fractions of instances would: with them the relaxed program all but states the
answer, and hundreds of services are proven in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuplanner.services.first_fit import Sizing
from gpuplanner.services.options import Choices, LeastSlices
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.linear import LinearModel
from gpuplanner.solving.solver import solve

Aim = Literal["gpus", "slices"]

_PROGRAM_ROUNDING = 1e-6


@dataclass(frozen=True)
class BoundedSizing:
    """The best sizing found, with its bounds.

    - ``sizing``: The answer.
    - ``gpus``: No plan needs fewer GPUs.
    - ``slices``: No plan with at most as many GPUs as the answer takes fewer compute slices.
    """

    sizing: Sizing
    gpus: int
    slices: int


def sized_jointly(choices: Choices, floor: LeastSlices, start: Sizing, effort: Effort) -> BoundedSizing:
    """Choose instances and layouts of all services together."""
    found = BoundedSizing(start, floor.gpus, floor.slices)
    try:
        if found.sizing.gpus > found.gpus:
            sizing, bound = _best(choices, floor, found.sizing, "gpus", effort)
            found = BoundedSizing(sizing, max(bound, floor.gpus), floor.slices)
        if choices.slices(found.sizing.instances) > found.slices:
            sizing, bound = _best(choices, floor, found.sizing, "slices", effort)
            found = BoundedSizing(sizing, found.gpus, max(bound, floor.slices))
    except KeyboardInterrupt:
        return found
    return found


def program(choices: Choices, floor: LeastSlices, aim: Aim, most_gpus: int) -> LinearModel:
    """The model."""
    model = LinearModel()
    options, layouts = choices.options, choices.layouts
    profiles = [option.profile for option in options]
    # Of the rate; an instance that serves more than all of it is worth no more.
    served = [min(1.0, option.throughput_per_s / choices.rate_per_s[option.service]) for option in options]
    instances = model.add_columns(
        [f"instances_{option}" for option in range(len(options))],
        cost=[profile.compute_slices if aim == "slices" else 0 for profile in profiles],
        high=[math.ceil(1 / share) for share in served],
    )
    on = model.add_columns(
        [f"on_{layout}" for layout in range(len(layouts))],
        cost=[aim == "gpus"] * len(layouts),
        high=[most_gpus] * len(layouts),
    )
    for number, service in enumerate(choices.rate_per_s):
        own = choices.of(service)
        model.add_row(f"rate_{number}", instances[own], [served[option] for option in own], ">=", 1.0)
        compute = [profiles[option].compute_slices for option in own]
        model.add_row(f"compute_{number}", instances[own], compute, ">=", floor.compute[service])
        memory = [profiles[option].memory_slices for option in own]
        model.add_row(f"memory_{number}", instances[own], memory, ">=", floor.memory[service])
    for name in sorted({profile.name for profile in profiles}):
        held = [layout.get(name, 0) for layout in layouts]
        wanted = [-1 if profile.name == name else 0 for profile in profiles]
        model.add_row(f"supply_{name}", [*on, *instances], [*held, *wanted], ">=", 0.0)
    model.add_row("fewest_gpus", on, np.ones(len(on)), ">=", floor.gpus)
    model.add_row("most_gpus", on, np.ones(len(on)), "<=", most_gpus)
    return model


def _best(
    choices: Choices, floor: LeastSlices, start: Sizing, aim: Aim, effort: Effort
) -> tuple[Sizing, int]:
    """The better of the start and what the solver finds, with the solver's bound (0 if it proved nothing)."""
    model = program(choices, floor, aim, start.gpus)
    answer = solve(model, effort, start=np.concatenate([start.instances, start.on]).astype(float))
    bound = 0 if answer.bound is None else math.ceil(answer.bound - _PROGRAM_ROUNDING * max(1.0, answer.bound))
    if answer.values is None:
        return start, bound
    whole = np.rint(answer.values).astype(np.int64)
    found = Sizing(*np.split(whole, [len(choices.options)]))
    # A solver keeps to its rows within a tolerance: an answer counts once it is checked in whole numbers.
    return (found if choices.holds(found.instances, found.on) else start), bound
