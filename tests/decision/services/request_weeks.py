"""Generated request traces with the rhythm of a day and a week, in the forms of the public traces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

MONDAY = datetime(2025, 1, 6, tzinfo=UTC)
"""Begin of every trace."""


def request_week(
    seed: int,
    *,
    days: int = 7,
    peak_per_s: float = 4.0,
    night_share: float = 0.15,
    weekend_share: float = 0.4,
    closed: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """Requests of a service: ``time, prompt_tokens, generated_tokens``, sorted by time.

    Arrivals are a Poisson process whose rate follows the hour of the day (least at 03:00, most at 15:00 UTC), with
    bursts: the rate of each minute is multiplied by a gamma variable of mean 1. Lengths are lognormal and independent.

    Parameters
    ----------
    seed : int
        Seed.
    days : int
        Length.
    peak_per_s : float
        Rate at 15:00 of a working day. [1/s]
    night_share, weekend_share : float
        Rate at 03:00 over that at 15:00; rate of Saturday and Sunday over that of other days.
    closed : tuple of int, optional
        Hours of the day from and until which no request comes.
    """
    rng = np.random.default_rng([seed, 59])
    minute = np.arange(days * 1440)
    hour, day = minute // 60 % 24, minute // 1440
    rhythm = night_share + (1 - night_share) * (1 - np.cos(2 * np.pi * (minute / 60 - 3) / 24)) / 2
    rate = peak_per_s * rhythm * np.where(day % 7 >= 5, weekend_share, 1.0) * rng.gamma(4.0, 0.25, len(minute))
    if closed is not None:
        rate[(hour >= closed[0]) & (hour < closed[1])] = 0.0
    count = rng.poisson(60 * rate)
    second = np.sort(np.repeat(60.0 * minute, count) + 60 * rng.random(count.sum()))
    prompt = np.clip(np.round(rng.lognormal(6.4, 1.0, len(second))), 1, 12_000).astype(int)
    answer = np.clip(np.round(rng.lognormal(5.0, 0.8, len(second))), 1, 2_000).astype(int)
    # Seven decimals, as the traces have them, of which the last is cut off.
    time = [MONDAY + timedelta(microseconds=round(1e6 * at)) for at in second.tolist()]
    return pl.DataFrame({"time": time, "prompt_tokens": prompt, "generated_tokens": answer})


def azure_csv(requests: pl.DataFrame) -> str:
    """Text of a trace in the form of Azure's of 2023."""
    time = pl.col("time").dt.strftime("%Y-%m-%d %H:%M:%S%.6f") + "0"
    named = requests.select(TIMESTAMP=time, ContextTokens="prompt_tokens", GeneratedTokens="generated_tokens")
    return named.write_csv()
