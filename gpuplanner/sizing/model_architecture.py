"""Model architectures: layers, widths, experts, parameters, from presets or config files."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from gpuplanner.core.errors import ScenarioError, resolve
from gpuplanner.hardware.catalog import facts

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
            query = h * heads * full
            if self.q_rank:
                query = h * self.q_rank + self.q_rank * heads * full + self.q_rank
            latent = h * (self.kv_rank + self.rope_dim) + self.kv_rank
            expanded = self.kv_rank * heads * (self.head_dim + self.v_dim)
            return query + latent + expanded + heads * self.v_dim * h
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
        expected = f"more than {one.params():.4g} for these layers"
        _refuse(architecture.name, "params", expected, f"{params:.4g}")
    return replace(architecture, ffn=max(1, round(width)))


def agree(architecture: Architecture, params: float, *, label: bool) -> str:
    """Compare a stated parameter count with the architecture."""
    counted = architecture.params()
    if abs(counted - params) <= LABEL_TOLERANCE * params:
        return ""
    if not label:
        _refuse(architecture.name, "params", f"{counted:.6g}, which its layers have", f"{params:.6g}")
    return f"label states {params / 1e9:.3g}B, the layers have {counted / 1e9:.4g}B, which is used"


def fields_of() -> tuple[str, ...]:
    """Names of what describes an architecture."""
    return tuple(field.name for field in fields(Architecture))


def _refuse(name: str, field: str, expected: str, came: object) -> NoReturn:
    raise ScenarioError(f"architecture {name!r}, {field}", expected, repr(came), f"Fix {field}.")


_HUB = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "experts_active": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "head_dim": ("head_dim", "qk_nope_head_dim"),
    "tied": ("tie_word_embeddings",),
}
"""What a Hub-style config.json calls each field."""
_GPT = {"gated": False, "bias": True, "norm": "layer"}
_FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {**_GPT, "tied": True} for family in ("gpt2", "bloom", "opt")},
    "gpt_neox": _GPT,
    "phi": {**_GPT, "norms": 1},
    "falcon": {"gated": False, "norm": "layer", "tied": True, "norms": 1},
    "bert": {**_GPT, "kind": "encoder", "tied": True},
    **{family: {"qkv_bias": True} for family in ("qwen2", "qwen")},
    **{family: {"qk_norm": True} for family in ("qwen3", "qwen3_moe")},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms": 4},
    **{family: {} for family in ("llama", "mistral", "mixtral", "deepseek_v2", "deepseek_v3", "phi3")},
}
"""What ``model_type`` says that the fields of a config.json do not."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])\b", re.IGNORECASE)
_MEGATRON = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "ffn-hidden-size": "ffn",
    "kv-channels": "head_dim",
    "vocab-size": "vocab",
    "padded-vocab-size": "vocab",
    "num-experts": "experts",
    "moe-router-topk": "experts_active",
    "max-position-embeddings": "positions",
}


@functools.cache
def presets() -> dict[str, Architecture]:
    """The shipped architectures by name, each with its source in ``hardware/facts/model_presets.csv``.

    Examples
    --------
    >>> presets()["llama-2-7b"].ffn
    11008
    """
    named = [name for name in fields_of() if name != "name"]
    return {
        row["preset"]: Architecture(
            row["preset"], **{name: _value(name, row[name]) for name in named if row[name] is not None}
        )
        for row in facts("model_presets").iter_rows(named=True)
    }


_SAME = frozenset({"instruct", "it", "chat", "base", "hf", "pt", "sft", "dpo", "thinking", "deduped", "meta"})
"""Words that tell releases of one architecture apart."""


@functools.cache
def _called() -> dict[str, str]:
    """Preset by every spelling."""
    names: dict[str, str] = {}
    for row in facts("model_presets").select("preset", "aliases").iter_rows():
        for name in (row[0], *(row[1].split(";") if row[1] else ())):
            names[_bare(name)] = row[0]
    return names


_FORMAT = re.compile(
    r"[-_.](?:quantized[-_.])?((?:nv|mx)?fp[48]|awq|gptq|int[48]|w4a16|w8a8|bf16)(?:[-_.](?:block|dynamic|int4|kv|v\d))*$",
    re.IGNORECASE,
)
"""Format of weights at the end of a name on a hub."""


def preset(name: str) -> Architecture:
    """A shipped architecture.

    Examples
    --------
    >>> preset("Llama-3.1-8B").kv_heads
    8
    """
    known = known_preset(name)
    return known or presets()[resolve(name, presets(), what="model preset", error=ScenarioError)]


def known_preset(name: str | None) -> Architecture | None:
    """A shipped architecture if the name is one of its spellings, else None.

    Examples
    --------
    >>> known_preset("google/gemma-3-27b-it").layers, known_preset("gemma-3-28b")
    (62, None)
    """
    own = (name or "").rpartition("/")[2]
    words = [word for word in re.split(r"[-\s]+", own) if word.lower() not in _SAME]
    found = _called().get(_bare(name or "")) or _called().get(_bare("-".join(words)))
    return presets()[found] if found else None


def published_preset(name: str) -> Architecture | None:
    """A shipped architecture as a hub calls its published weights, in the format that the end of the name states.

    Examples
    --------
    >>> published_preset("Qwen/Qwen3-32B-FP8").released, published_preset("Qwen/Qwen3-32B").released
    ('FP8', '')
    """
    if model := known_preset(name):
        return model
    stated, bare = _FORMAT.search(name), _FORMAT.sub("", name)
    found = known_preset(bare) or known_preset(bare.replace("_", "-"))
    return replace(found, released=stated[1]) if found and stated else found


def describe(model: str) -> tuple[Architecture, list[str]]:
    """An architecture from a preset's name, the path of a config.json, Megatron arguments or a short spec.

    Parameters
    ----------
    model : str
        ``"llama-3.1-8b"``; ``"config.json"``; ``"--num-layers 32 --hidden-size 4096 …"``; or ``"layers=32 hidden=4096
        heads=32 vocab=32000 params=6.7B"``.

    Returns
    -------
    tuple
        The architecture, and what was assumed.

    Raises
    ------
    ScenarioError
        If it cannot be read, with the field and the nearest valid choice.

    Examples
    --------
    >>> describe("layers=32 hidden=4096 heads=32 vocab=32000 params=6738415616")[0].ffn
    11008
    """
    if model.endswith(".json"):
        path = Path(model)
        try:
            return from_config(json.loads(path.read_text("utf-8")), path.stem)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            expected = "a readable config.json"
            raise ScenarioError(f"model {path.name}", expected, str(error), "Check the path.") from error
    if model.lstrip().startswith("--"):
        return from_arguments(model.split())
    if "=" in model:
        return _from_spec(dict(_pair(word) for word in model.split()))
    return preset(model), []


def from_config(config: Mapping[str, Any], name: str) -> tuple[Architecture, list[str]]:
    """An architecture from a Hub-style config.

    Examples
    --------
    >>> from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "vocab_size": 100, "intermediate_size": 172}, "tiny")[0].params()
    111936
    """
    config = {**config, **config.get("text_config", {})}
    family = config.get("model_type", "")
    if family not in _FAMILIES:
        todo = "Give layers, hidden, heads, vocab and params as a spec instead."
        raise ScenarioError(f"model {name}, model_type", f"one of {', '.join(_FAMILIES)}", repr(family), todo)
    given: dict[str, Any] = dict(_FAMILIES[family])
    for field, names in _HUB.items():
        value = next((config[each] for each in names if config.get(each) is not None), None)
        if value is not None:
            given[field] = value
    given["gelu_new"] = "gelu_new" in (config.get("activation_function"), config.get("hidden_act"))
    if config.get("multi_query") and "num_kv_heads" not in config:
        given["kv_heads"] = 1
    given["qkv_bias"] = bool(config.get("attention_bias", given.get("qkv_bias", False)))
    said = []
    if family in ("gpt2", "bloom", "gpt_neox", "phi", "opt", "bert"):
        given["positions"] = config.get("n_positions", config.get("max_position_embeddings", 0))
        given["positions"] *= family in ("gpt2", "opt", "bert")
    if "ffn" not in given and "hidden" in given and not given.get("experts"):
        given["ffn"] = 4 * given["hidden"]
        said.append(f"MLP width assumed {given['ffn']}, 4 x hidden")
    if family == "qwen" and "ffn" in given:
        given["ffn"] //= 2  # its config counts both halves of the gate
    if given.get("experts"):
        given.setdefault("expert_ffn", given.get("ffn", 0))
        shared = config.get("n_shared_experts") or 0
        given["shared_ffn"] = shared * given["expert_ffn"]
    return _made(name, given), said


def from_arguments(words: Sequence[str]) -> tuple[Architecture, list[str]]:
    """An architecture from Megatron or DeepSpeed arguments.

    Examples
    --------
    >>> from_arguments("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 100".split())[0].ffn
    256
    """
    given: dict[str, Any] = {**_GPT, "tied": True}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        key = word.lstrip("-").partition("=")[0]
        if word.startswith("--") and key in _MEGATRON:
            given[_MEGATRON[key]] = _value(_MEGATRON[key], word.partition("=")[2] or value)
    flags = {word.lstrip("-") for word in words}
    given["gated"] = "swiglu" in flags
    given["bias"] = "disable-bias-linear" not in flags
    given["tied"] = "untie-embeddings-and-output-weights" not in flags
    given["norm"] = "rms" if "RMSNorm" in words else "layer"
    said = []
    if "ffn" not in given and "hidden" in given:
        given["ffn"] = 4 * given["hidden"]
        said.append("MLP width 4 x hidden, Megatron's default")
    if given.get("experts"):
        given["expert_ffn"] = given["ffn"]
        given.setdefault("experts_active", 2)
    return _made("arguments", given), said


def size_in(text: str | None) -> float | None:
    """Parameters that a label names, as in ``GPT 20B``.

    Examples
    --------
    >>> size_in("GPT 20B"), size_in("bert-base")
    (20000000000.0, None)
    """
    found = _SIZE.search((text or "").replace("-", " ").replace("_", "."))
    return float(found[1]) * (1e9 if found[2].lower() == "b" else 1e6) if found else None


def _from_spec(given: dict[str, str]) -> tuple[Architecture, list[str]]:
    """Fields by name; ``params`` as a word (6.7B) or a number; the MLP width follows from it where it is not given."""
    name, stated = given.pop("name", "spec"), given.pop("params", None)
    values = {}
    for key, text in given.items():
        values[key] = _value(resolve(key, fields_of(), what="field", error=ScenarioError), text)
    label = stated is not None and not stated.replace(".", "", 1).isdigit()
    params = None if stated is None else size_in(stated) if label else float(stated)
    if stated is not None and not params:
        raise ScenarioError("spec, params", "6.7B or a number", repr(stated), "Give one of these.")
    if "ffn" not in values and not values.get("experts"):
        if params is None:
            expected = "ffn, or params from which it follows"
            raise ScenarioError("spec", expected, "neither", "Give one of them.")
        made = with_width_for(_made(name, {**values, "ffn": 1}), params)
        return made, [f"MLP width {made.ffn} from {params:.4g} parameters"]
    made = _made(name, values)
    said = agree(made, params, label=label) if params else ""
    return made, [said] if said else []


def _made(name: str, given: Mapping[str, Any]) -> Architecture:
    try:
        return Architecture(name, **{key: value for key, value in given.items() if value is not None})
    except TypeError as error:
        raise ScenarioError(f"model {name}", "numbers", str(error), "Check its fields.") from error


def _value(field: str, text: str | float) -> Any:  # noqa: ANN401 - what the field is
    if field in ("norm", "kind", "name", "released"):
        return text
    try:
        number = float(text)
    except ValueError:
        raise ScenarioError(f"model, {field}", "a number", repr(text), f"Fix {field}.") from None
    if field in ("gated", "tied", "bias", "qkv_bias", "qk_norm", "gelu_new"):
        return bool(number)
    return number if field.startswith("given") else int(number)


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ScenarioError("spec", "words such as layers=32", repr(word), "Write 'layers=32'.")
    return key, value


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower().rpartition("/")[2].replace("_", "."))
