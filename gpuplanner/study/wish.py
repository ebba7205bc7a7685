"""What somebody wants of a model: to train or serve it, by when, on which boards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuplanner.errors import ScenarioError, message
from gpuplanner.sizing.predict.tools import figures

TASKS = ("train", "lora", "serve")
RISK = 0.05
"""Largest probability to run out of memory that a plan may have."""


@dataclass(frozen=True)
class Wish:
    """What is wanted.

    Parameters
    ----------
    model : str
        Preset, config.json, Megatron arguments or spec.
    task : {"train", "lora", "serve"}
        What to do with it.
    seq : int
        Tokens of a sequence; serving: of prompt and answer.
    tool : str, optional
        Training tool; otherwise mixed precision with what each plan says.
    tokens : float, optional
        To train on, or to generate.
    deadline_h : float, optional
        Hours until it is done.
    boards : mapping
        Board → GPUs at hand of it (None: as many as are needed); empty: all with a data sheet and a price.
    latency_s : float, optional
        Serving: seconds a token of one sequence may take.
    quantization : str
        Of frozen or served weights: ``nf4``, ``nf4-dq``, ``int8``, ``fp8``, ``gptq``.
    risk : float
        Largest probability to run out of memory.
    """

    model: str
    task: str
    seq: int
    tool: str | None = None
    tokens: float | None = None
    deadline_h: float | None = None
    boards: Mapping[str, int | None] | None = None
    latency_s: float | None = None
    quantization: str = ""
    risk: float = RISK

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            what = message("size, task", f"one of {', '.join(TASKS)}", repr(self.task), "Choose one.")
            raise ScenarioError(what)
        for name in ("seq", "tokens", "deadline_h", "latency_s", "risk"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ScenarioError(message(f"size, {name}", "a number above 0", repr(value), "Mend it."))
        if self.quantization and figures("quantization", self.quantization, "weight_bytes") is None:
            known = "nf4, nf4-dq, fp4, int8, fp8, gptq"
            raise ScenarioError(
                message("size, quantization", f"one of {known}", repr(self.quantization), "Mend it.")
            )
        if self.quantization and self.task == "train":
            text = message(
                "size, quantization", "task lora or serve", "train", "Quantised weights are not trained."
            )
            raise ScenarioError(text)
