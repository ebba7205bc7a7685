"""Calibration of serving speed by the user's own time per token against running requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.sizing.replica_queue import Floats
from gpuplanner.sizing.serving_speed import ServingSpeed, ServingWork, serving_seconds, shipped_serving_speed

MIN_CALIBRATION_POINTS = 10
"""Fewest measurements for a calibration."""
MIN_RUNNING_RATIO = 2.0
"""Ratio of the most to the fewest running requests from which two parameters can be told apart."""
SHARE_STEPS, STEP_TIME_STEPS = 61, 41
"""Grid points of the two parameters in each round of the search."""
SEARCH_ROUNDS = 4
"""Rounds of the search, each on a finer grid around the best point."""


@dataclass(frozen=True)
class SpeedCalibration:
    """Speed with two parameters fitted to measurements.

    - ``speed``: Parameters, with ``bandwidth_share`` and ``step_s`` as fitted.
    - ``points``: Measurements.
    - ``error_before``, ``error_after``: Median relative error of the time per token [0-1].
    - ``fitted``: Names of the fitted parameters.
    """

    speed: ServingSpeed
    points: int
    error_before: float
    error_after: float
    fitted: tuple[str, ...]


def calibrate_serving_speed(
    make_work: Callable[[Floats], ServingWork], running: Floats, token_s: Floats, speed: ServingSpeed | None = None
) -> SpeedCalibration | str:
    """Fit the share of the memory bandwidth and the time of the host for a step to measured times per token.

    The sum of the squared logarithmic errors is least. Where the running requests hardly vary, only the share is
    fitted.

    Parameters
    ----------
    make_work : callable
        Work of an engine by running requests, as :func:`~gpuplanner.sizing.serving_speed.compute_serving_work` has it.
    running, token_s : array of float, shape (n_points,)
        Running requests of a replica, and mean time per output token [s].
    speed : ServingSpeed, optional
        Parameters to start from; by default the shipped ones.

    Returns
    -------
    SpeedCalibration or str
        The calibration, or the reason why there is none.

    Examples
    --------
    >>> from gpuplanner.sizing.model_architecture import load_preset
    >>> from gpuplanner.sizing.serving_speed import EngineLayout, EngineLoad, compute_serving_work
    >>> from gpuplanner.sizing.training_throughput import find_gpu_spec
    >>> model, h100 = load_preset("llama-3.1-8b"), find_gpu_spec("H100-80GB-SXM5")
    >>> def work(running):
    ...     return compute_serving_work(model, h100, EngineLayout(), EngineLoad(1024, 256, running))
    >>> running = np.arange(1.0, 41.0)
    >>> slower = replace(shipped_serving_speed(), bandwidth_share=0.5, step_s=0.004)
    >>> result = calibrate_serving_speed(work, running, serving_seconds(work(running), slower)[0])
    >>> round(result.speed.bandwidth_share, 2), round(result.speed.step_s, 3)
    (0.5, 0.004)
    """
    speed = speed or shipped_serving_speed()
    is_usable = np.isfinite(running) & np.isfinite(token_s) & (running > 0) & (token_s > 0)
    running, token_s = np.maximum(running[is_usable], 1.0), token_s[is_usable]
    if len(running) < MIN_CALIBRATION_POINTS:
        return f"{len(running)} measurements of time per token with running requests: at least {MIN_CALIBRATION_POINTS}"
    work, measured = make_work(running), np.log(token_s)

    def errors(share: float, step_s: float) -> Floats:
        """Logarithmic errors of the predicted times with two parameters."""
        tried = replace(speed, bandwidth_share=share, step_s=step_s)
        return np.asarray(np.log(serving_seconds(work, tried)[0]) - measured)

    vary_step = np.quantile(running, 0.95) >= MIN_RUNNING_RATIO * np.quantile(running, 0.05)
    shares = np.geomspace(0.05, 1.0, SHARE_STEPS)
    steps = np.linspace(0.0, float(token_s.min()), STEP_TIME_STEPS) if vary_step else np.array([speed.step_s])
    best = speed.bandwidth_share, speed.step_s
    for _ in range(SEARCH_ROUNDS):
        squares = [(float(np.square(errors(share, step)).sum()), share, step) for share in shares for step in steps]
        _, share, step_s = min(squares)
        best = float(share), float(step_s)
        factor, width = (shares[1] / shares[0]) ** 2, (steps[1] - steps[0]) * 2 if vary_step else 0.0
        shares = np.geomspace(best[0] / factor, min(best[0] * factor, 1.0), SHARE_STEPS)
        if vary_step:
            steps = np.linspace(max(best[1] - width, 0.0), best[1] + width, STEP_TIME_STEPS)
    before, after = (
        float(np.median(np.abs(np.expm1(errors(*pair))))) for pair in ((speed.bandwidth_share, speed.step_s), best)
    )
    names = ("bandwidth_share", "step_s")[: 1 + bool(vary_step)]
    fitted = replace(speed, bandwidth_share=best[0], step_s=best[1])
    return SpeedCalibration(fitted, len(running), before, after, names)
