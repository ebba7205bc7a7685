"""What a model is made of: layers, widths, heads, experts, and the parameters that follow."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import NoReturn

from gpuplanner.errors import ScenarioError, message

KINDS = ("decoder", "encoder", "diffusion")
NORMS = ("rms", "layer")
LABEL_TOLERANCE = 0.03
"""Share by which a stated parameter count may differ from the architecture before one of them must be wrong."""


@dataclass(frozen=True)
class Architecture:
    """A transformer, or a diffusion model known by its parameters and activations.

    Parameters
    ----------
    name : str
        What it is called.
    layers, hidden, heads, kv_heads, vocab : int
        Layers, hidden size, attention heads, key and value heads (1: MQA, `heads`: MHA), vocabulary.
    ffn : int
        Width of a dense MLP.
    head_dim : int
        Size of a head; 0: ``hidden / heads``.
    gated, tied, bias, qkv_bias, qk_norm : bool
        MLP of three matrices; head shares the embedding; every linear layer or only q, k, v has a bias; q and k are
        normed by the head.
    norm : {"rms", "layer"}
        Kind of the norms.
    norms : int
        Norms a layer: 2, or 1 where attention and MLP share it, or 4 with norms behind them.
    positions : int
        Learned positions.
    experts, experts_active, expert_ffn, shared_ffn, dense_layers : int
        Routed experts, how many a token visits, their width, width of what every token visits beside them, and
        layers with a dense MLP of `ffn`. All experts are resident.
    q_rank, kv_rank, rope_dim, v_dim : int
        Latent attention (MLA): ranks of query (0: full) and of key and value, rotary and value size of a head.
    gelu_new : bool
        The MLP's activation is the tanh form of GELU that some libraries compose of elementary operations.
    window, window_every : int
        Tokens that a layer with a sliding window reads at most (0: none has one), and of how many layers one reads
        all (0: none).
    released : str
        Format of the published weights where it is not of 16 bits: ``fp8``, ``mxfp4``.
    extra : int
        Parameters of what is none of these: poolers, norms of embeddings.
    given_params : float
        Diffusion: all parameters.
    given_activation_bytes : float
        Diffusion: bytes kept for one sample.
    """

    name: str
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocab: int = 0
    ffn: int = 0
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norm: str = "rms"
    norms: int = 2
    positions: int = 0
    experts: int = 0
    experts_active: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    gelu_new: bool = False
    window: int = 0
    window_every: int = 0
    released: str = ""
    extra: int = 0
    kind: str = "decoder"
    given_params: float = 0.0
    given_activation_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.norm not in NORMS:
            _refuse(self.name, "kind, norm", f"one of {KINDS} and of {NORMS}", (self.kind, self.norm))
        if self.kind == "diffusion":
            if self.given_params <= 0:
                _refuse(self.name, "given_params", "a number above 0", self.given_params)
            return
        for name in ("layers", "hidden", "heads", "vocab", "ffn"):
            if getattr(self, name) <= 0 and not (name == "ffn" and self.experts):
                _refuse(self.name, name, "a whole number above 0", getattr(self, name))
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        if not self.head_dim and self.hidden % self.heads:
            near = max(d for d in range(1, self.heads + 1) if self.hidden % d == 0)
            _refuse(self.name, "heads", f"a divisor of hidden {self.hidden}, such as {near}", self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden // self.heads)
        if self.heads % self.kv_heads and not self.kv_rank:
            _refuse(self.name, "kv_heads", f"a divisor of heads {self.heads}", self.kv_heads)

    @functools.cached_property
    def q_width(self) -> int:
        """Width of the queries, and of what attention hands on."""
        return self.heads * self.head_dim

    @functools.cached_property
    def kv_width(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @functools.cached_property
    def sides(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer; without a gate that of ``gate`` is not there."""
        h, q, kv, f = self.hidden, self.q_width, self.kv_width, self.mlp_width
        attention = {"q": (h, q), "k": (h, kv), "v": (h, kv), "o": (q, h)}
        return {**attention, "gate": (h, f), "up": (h, f), "down": (f, h)}

    @property
    def mlp_width(self) -> int:
        """MLP width that one token meets in a layer; with experts, of those that it visits."""
        return self.experts_active * self.expert_ffn + self.shared_ffn if self.experts else self.ffn

    def attention_params(self) -> int:
        """Parameters of the attention of one layer, without norms."""
        h, q, kv = self.hidden, self.q_width, self.kv_width
        if self.kv_rank:
            heads, full = self.heads, self.head_dim + self.rope_dim
            query = (
                h * self.q_rank + self.q_rank * heads * full + self.q_rank
                if self.q_rank
                else h * heads * full
            )
            latent = h * (self.kv_rank + self.rope_dim) + self.kv_rank
            return (
                query + latent + self.kv_rank * heads * (self.head_dim + self.v_dim) + heads * self.v_dim * h
            )
        biases = (q + 2 * kv) * (self.bias or self.qkv_bias) + h * self.bias
        return 2 * h * q + 2 * h * kv + biases + 2 * self.head_dim * self.qk_norm

    def mlp_params(self, width: int) -> int:
        """Parameters of one MLP of a width."""
        return (3 if self.gated else 2) * self.hidden * width + (width + self.hidden) * self.bias

    def norm_params(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    def layer_params(self, *, active: bool = False) -> float:
        """Parameters of the mean layer; `active`: only the experts that a token visits."""
        return self._layers[active]

    @functools.cached_property
    def _layers(self) -> tuple[float, float]:
        return self._layer_params(active=False), self._layer_params(active=True)

    def _layer_params(self, *, active: bool) -> float:
        common = self.attention_params() + self.norms * self.norm_params()
        if not self.experts:
            return common + self.mlp_params(self.ffn)
        routed = self.experts_active if active else self.experts
        sparse = routed * self.mlp_params(self.expert_ffn) + self.hidden * self.experts
        sparse += self.mlp_params(self.shared_ffn) if self.shared_ffn else 0
        dense = self.mlp_params(self.ffn) if self.dense_layers else 0
        return common + (self.dense_layers * dense + (self.layers - self.dense_layers) * sparse) / self.layers

    def embedding_params(self, padded_to: int = 1) -> int:
        """Parameters of the token embedding; the head has as many again unless it is tied."""
        return -(-self.vocab // padded_to) * padded_to * self.hidden

    def params(self, *, active: bool = False) -> float:
        """All parameters, embeddings counted once where they are tied.

        Examples
        --------
        >>> from gpuplanner.sizing.predict.describe import preset
        >>> round(preset("llama-3.1-8b").params())
        8030261248
        """
        if self.kind == "diffusion":
            return self.given_params
        once = self.positions * self.hidden + self.norm_params() * (self.kind == "decoder") + self.extra
        embeddings = self.embedding_params() * (1 if self.tied or self.kind == "encoder" else 2)
        return self.layers * self.layer_params(active=active) + embeddings + once


def with_width_for(architecture: Architecture, params: float) -> Architecture:
    """The MLP width that nobody gave, from the parameter count.

    Examples
    --------
    >>> with_width_for(Architecture("x", 32, 4096, 32, 32, 32000, ffn=1), 6738415616).ffn
    11008
    """
    one = replace(architecture, ffn=1)
    two = replace(architecture, ffn=2)
    width = 1 + (params - one.params()) / (two.params() - one.params())
    if width < 1:
        _refuse(
            architecture.name, "params", f"more than {one.params():.4g} for these layers", f"{params:.4g}"
        )
    return replace(architecture, ffn=max(1, round(width)))


def agree(architecture: Architecture, params: float, *, label: bool) -> str:
    """Compare a stated parameter count with the architecture."""
    counted = architecture.params()
    if abs(counted - params) <= LABEL_TOLERANCE * params:
        return ""
    if not label:
        _refuse(architecture.name, "params", f"{counted:.6g}, which its layers have", f"{params:.6g}")
    return f"label says {params / 1e9:.3g}B, the layers have {counted / 1e9:.4g}B, which is what counts"


def fields_of() -> tuple[str, ...]:
    """Names of what describes an architecture."""
    return tuple(field.name for field in fields(Architecture))


def _refuse(name: str, field: str, expected: str, came: object) -> NoReturn:
    raise ScenarioError(message(f"architecture {name!r}, {field}", expected, repr(came), "Mend it."))
