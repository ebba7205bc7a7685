"""Replicas of a language model, step by step: a plain program that shares nothing with the package but its rules.

Rules: each request goes to the ready replica with the fewest requests, the first of equals. A replica works in steps.
In a step each running sequence makes one token; waiting prompts, in order, take what is left of the step's tokens, in
chunks, as long as there are places. A prompt that is complete has made its first token at the end of the step. A
replica that is removed finishes what it has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence


class StepByStep:
    """One replica."""

    def __init__(self, step_s: Sequence[float], prompt_token_s: float, budget: int) -> None:
        self.step_s, self.prompt_token_s, self.budget, self.places = step_s, prompt_token_s, budget, len(step_s) - 1
        self.clock = 0.0
        self.queue: deque[list[int]] = deque()
        self.running: list[list[int]] = []
        self.first: dict[int, float] = {}
        self.end: dict[int, float] = {}

    def load(self) -> int:
        return len(self.queue) + len(self.running)

    def work_until(self, instant: float) -> None:
        while self.clock < instant and self.load():
            tokens = self.budget - len(self.running)
            places, chunk, ready = self.places - len(self.running), 0, []
            while self.queue and places > 0 and tokens > 0:
                head = self.queue[0]
                part = min(head[1], tokens)
                head[1] -= part
                tokens -= part
                chunk += part
                if head[1]:
                    break
                ready.append(self.queue.popleft())
                places -= 1
            length, steps = self.step_s[len(self.running)] + chunk * self.prompt_token_s, 1
            if not chunk:  # equal steps until a sequence ends or the instant is reached
                steps = min(sequence[2] for sequence in self.running)
                if not self.queue and instant != float("inf"):
                    steps = max(1, min(steps, math.ceil((instant - self.clock) / length)))
            self.clock += steps * length
            for sequence in self.running:
                sequence[2] -= steps
            for sequence in ready:
                self.first[sequence[0]] = self.clock
                sequence[2] -= 1
                self.running.append(sequence)
            for sequence in [each for each in self.running if not each[2]]:
                self.end[sequence[0]] = self.clock
            self.running = [each for each in self.running if each[2]]


def play(
    arrivals: Sequence[float],
    prompts: Sequence[int],
    answers: Sequence[int],
    replicas_by_hour: Sequence[int],
    step_s: Sequence[float],
    prompt_token_s: float,
    budget: int,
) -> tuple[list[float], list[float]]:
    """Time to the first token, and mean time per further token, of each request [s]."""
    group = [StepByStep(step_s, prompt_token_s, budget) for _ in range(max(replicas_by_hour))]
    for number, arrival in enumerate(arrivals):
        for replica in group:
            replica.work_until(arrival)
        ready = group[: replicas_by_hour[int(arrival // 3600)]]
        chosen = min(ready, key=StepByStep.load)
        if not chosen.load():
            chosen.clock = max(chosen.clock, arrival)
        chosen.queue.append([number, prompts[number], answers[number]])
    for replica in group:
        replica.work_until(float("inf"))
    first = {number: at for replica in group for number, at in replica.first.items()}
    end = {number: at for replica in group for number, at in replica.end.items()}
    waited = [first[number] - arrival for number, arrival in enumerate(arrivals)]
    return waited, [(end[n] - first[n]) / max(answers[n] - 1, 1) for n in range(len(arrivals))]
