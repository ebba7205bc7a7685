"""The law of speed on a slice: host and GPU share one step, and only the GPU's part grows on a smaller slice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MAX_LOG = 5.0
"""Bound of the log of the boundness: beyond it, either way, no speed changes in its third digit."""


@dataclass(frozen=True)
class SpeedLaw:
    r"""Speed on a slice, relative to the whole GPU, of a job of known boundness.

    A step needs the host for :math:`L_0` and the whole GPU for :math:`b/C`. Throughput is the smooth minimum
    of both rates, :math:`\left((b/L_0)^{-q} + (C e_k)^{-q}\right)^{-1/q}`, so relative to the whole GPU

    .. math:: v_k = \left(1 + s\,(\rho_k^{-q} - 1)\right)^{-1/q}, \qquad s = \frac{u^q}{1 + u^q}.

    The boundness :math:`u = (b/L_0)/C` of a job is the rate at which its host can feed the GPU over the rate
    of the GPU itself; the limit :math:`\rho_k = e_k/e_{whole}` is the speed of a job bound by the slice alone.
    With :math:`q = 1` host and GPU take turns (Amdahl), with :math:`q \to \infty` they overlap perfectly.

    Parameters
    ----------
    fractions : tuple of float
        SMs of the measured slices over those of the full-size profile, ascending, ending with 1.
    limits : tuple of float
        Limit :math:`\rho` of each.
    sharpness : float
        The exponent :math:`q`.

    References
    ----------
    Williams et al., Roofline, CACM 2009, for the minimum of two bounds; the smooth form is that of a
    generalised mean.

    Examples
    --------
    >>> law = SpeedLaw(fractions=(0.5, 1.0), limits=(0.5, 1.0), sharpness=4.0)
    >>> law.speed(np.array([-MAX_LOG, 0.0, MAX_LOG]), np.array(0.5)).round(2)
    array([1. , 0.59, 0.5 ])
    """

    fractions: tuple[float, ...]
    limits: tuple[float, ...]
    sharpness: float

    def limit(self, fraction: npt.ArrayLike) -> Floats:
        """Limit of slices with so large a share of the SMs; a straight line between measured ones, in logs.

        Below the smallest measured slice the limit is proportional to the share.

        Examples
        --------
        >>> SpeedLaw((0.25, 1.0), (0.36, 1.0), 4.0).limit([0.125, 0.25, 0.5]).round(2)
        array([0.18, 0.36, 0.6 ])
        """
        at = np.log(np.asarray(fraction, dtype=np.float64))
        known, limits = np.log(self.fractions), np.log(self.limits)
        found: Floats = np.exp(np.interp(at, known, limits) + np.minimum(at - known[0], 0.0))
        return found

    def speed(self, log_boundness: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Relative speed (0-1]; arguments broadcast.

        Examples
        --------
        >>> law = SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0)
        >>> float(law.speed(0.0, 0.25))  # half on the host, half on a quarter of the GPU: 1 / (1/2 + 1/2 / 0.25)
        0.4
        """
        return (1 + self.share(log_boundness) * self._excess(limit)) ** (-1 / self.sharpness)

    def share(self, log_boundness: npt.ArrayLike) -> Floats:
        """The term s: weight of the GPU's part in a step on the whole GPU, 0-1.

        Examples
        --------
        >>> float(SpeedLaw((0.25, 1.0), (0.25, 1.0), 1.0).share(0.0))
        0.5
        """
        return 1 / (1 + np.exp(-self.sharpness * np.asarray(log_boundness, dtype=np.float64)))

    def from_speed(self, speed: npt.ArrayLike, limit: npt.ArrayLike) -> Floats:
        """Log of the boundness at which a slice with this limit reaches this speed.

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 4.0)
        >>> float(law.from_speed(law.speed(0.3, 0.5), 0.5).round(6))
        0.3
        """
        slower = np.maximum(np.asarray(speed, dtype=np.float64) ** -self.sharpness - 1, 0.0)
        return self._log_boundness(slower / self._excess(limit))

    def from_batches(
        self, batch: npt.ArrayLike, step_s: npt.ArrayLike, other: npt.ArrayLike, other_step_s: npt.ArrayLike
    ) -> Floats:
        """Log of the boundness at one batch size, from step times of two on the whole GPU.

        Both times fit ``step**q = L0**q + (batch / C)**q``, which is linear in the two unknowns.

        Parameters
        ----------
        batch, step_s : array_like
            Batch size of the job, and its step time [s].
        other, other_step_s : array_like
            Another batch size, best the largest that fits, and its step time [s].

        Examples
        --------
        >>> law = SpeedLaw((0.5, 1.0), (0.5, 1.0), 1.0)
        >>> host_s, gpu_s_per_item = 0.02, 0.01
        >>> u = law.from_batches(4, host_s + 4 * gpu_s_per_item, 8, host_s + 8 * gpu_s_per_item)
        >>> float(np.exp(u).round(6))  # the GPU needs 0.04 s where the host needs 0.02 s
        2.0
        """
        q = self.sharpness
        one, two = (np.asarray(size, dtype=np.float64) ** q for size in (batch, other))
        step, other_step = (np.asarray(time, dtype=np.float64) ** q for time in (step_s, other_step_s))
        per_item = (other_step - step) / (two - one)
        return self._log_boundness(per_item * one / step)

    def _excess(self, limit: npt.ArrayLike) -> Floats:
        return np.asarray(limit, dtype=np.float64) ** -self.sharpness - 1

    def _log_boundness(self, share: Floats) -> Floats:
        within = np.clip(share, np.finfo(np.float64).tiny, 1 - np.finfo(np.float64).eps)
        log_odds = np.log(within) - np.log1p(-within)
        return np.clip(log_odds / self.sharpness, -MAX_LOG, MAX_LOG)
