"""Model architectures from presets, config files, arguments or specs, and their parameter counts."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.hardware.catalog import facts

ARCHITECTURE_KINDS = ("decoder", "encoder", "diffusion")
"""Kinds of model architectures."""
NORM_KINDS = ("rms", "layer")
"""Kinds of normalization: RMSNorm and LayerNorm."""
MAX_PARAMETER_COUNT_DIFFERENCE_FRACTION = 0.03
"""Share by which a stated parameter count may differ from the architecture before one of them must be wrong."""


@dataclass(frozen=True)
class Architecture:
    """Architecture of a transformer, or a diffusion model known by its parameters and activations.

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
        """Check the fields and fill in those that follow from others."""
        if self.kind not in ARCHITECTURE_KINDS or self.norm not in NORM_KINDS:
            _reject_field(
                self.name, "kind, norm", f"one of {ARCHITECTURE_KINDS} and of {NORM_KINDS}", (self.kind, self.norm)
            )
        if self.kind == "diffusion":
            if self.given_params <= 0:
                _reject_field(self.name, "given_params", "a number above 0", self.given_params)
            return
        for name in ("layers", "hidden", "heads", "vocab", "ffn"):
            if getattr(self, name) <= 0 and not (name == "ffn" and self.experts):
                _reject_field(self.name, name, "a whole number above 0", getattr(self, name))
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        if not self.head_dim and self.hidden % self.heads:
            near = max(d for d in range(1, self.heads + 1) if self.hidden % d == 0)
            _reject_field(self.name, "heads", f"a divisor of hidden {self.hidden}, such as {near}", self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden // self.heads)
        if self.heads % self.kv_heads and not self.kv_rank:
            _reject_field(self.name, "kv_heads", f"a divisor of heads {self.heads}", self.kv_heads)

    @functools.cached_property
    def q_width(self) -> int:
        """Width of the queries, and of the output of attention."""
        return self.heads * self.head_dim

    @functools.cached_property
    def kv_width(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @functools.cached_property
    def matrix_shapes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each weight matrix of a layer, by name; the active experts count as one MLP.

        ``gate`` is present even if the MLP has no gate.
        """
        h, q, kv, f = self.hidden, self.q_width, self.kv_width, self.mlp_width
        attention = {"q": (h, q), "k": (h, kv), "v": (h, kv), "o": (q, h)}
        return {**attention, "gate": (h, f), "up": (h, f), "down": (f, h)}

    @property
    def mlp_width(self) -> int:
        """MLP width that one token passes in a layer, over its active experts."""
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
        """Return the parameters of the mean layer: all, and those active for one token."""
        return self._layer_params(active=False), self._layer_params(active=True)

    def _layer_params(self, *, active: bool) -> float:
        """Return the parameters of one layer, or those of it that are active for one token."""
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
        >>> round(load_preset("llama-3.1-8b").params())
        8030261248
        """
        if self.kind == "diffusion":
            return self.given_params
        once = self.positions * self.hidden + self.norm_params() * (self.kind == "decoder") + self.extra
        embeddings = self.embedding_params() * (1 if self.tied or self.kind == "encoder" else 2)
        return self.layers * self.layer_params(active=active) + embeddings + once


def infer_mlp_width(architecture: Architecture, params: float) -> Architecture:
    """Infer a missing MLP width from the parameter count.

    Examples
    --------
    >>> infer_mlp_width(Architecture("x", 32, 4096, 32, 32, 32000, ffn=1), 6738415616).ffn
    11008
    """
    width_1 = replace(architecture, ffn=1)
    width_2 = replace(architecture, ffn=2)
    width = 1 + (params - width_1.params()) / (width_2.params() - width_1.params())
    if width < 1:
        expected = f"more than {width_1.params():.4g} for these layers"
        _reject_field(architecture.name, "params", expected, f"{params:.4g}")
    return replace(architecture, ffn=max(1, round(width)))


def compare_params(architecture: Architecture, params: float, *, label: bool) -> str:
    """Compare a stated parameter count with that of the architecture; return a note if they differ."""
    counted = architecture.params()
    if abs(counted - params) <= MAX_PARAMETER_COUNT_DIFFERENCE_FRACTION * params:
        return ""
    if not label:
        _reject_field(architecture.name, "params", f"{counted:.6g}, which its layers have", f"{params:.6g}")
    return f"label states {params / 1e9:.3g}B, the layers have {counted / 1e9:.4g}B, which is used"


def list_architecture_fields() -> tuple[str, ...]:
    """List the field names of an architecture."""
    return tuple(field.name for field in fields(Architecture))


def _reject_field(name: str, field: str, expected: str, got: object) -> NoReturn:
    """Raise the error for a field of an architecture with an impossible value."""
    raise ScenarioError(f"architecture {name!r}, {field}", expected, repr(got), f"Fix {field}.")


_GPT_STYLE_FIELDS = {"gated": False, "bias": True, "norm": "layer"}
"""Architecture fields that GPT-style models share."""
_FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {**_GPT_STYLE_FIELDS, "tied": True} for family in ("gpt2", "bloom", "opt")},
    "gpt_neox": _GPT_STYLE_FIELDS,
    "phi": {**_GPT_STYLE_FIELDS, "norms": 1},
    "falcon": {"gated": False, "norm": "layer", "tied": True, "norms": 1},
    "bert": {**_GPT_STYLE_FIELDS, "kind": "encoder", "tied": True},
    **{family: {"qkv_bias": True} for family in ("qwen2", "qwen")},
    **{family: {"qk_norm": True} for family in ("qwen3", "qwen3_moe")},
    "gemma": {"tied": True},
    "gemma2": {"tied": True, "norms": 4},
    **{family: {} for family in ("llama", "mistral", "mixtral", "deepseek_v2", "deepseek_v3", "phi3")},
}
"""Architecture fields that follow from ``model_type`` in a config.json."""
_PARAMETER_COUNT_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])\b", re.IGNORECASE)
"""Parameter count in a label, such as ``20B`` or ``350M``."""


@functools.cache
def _read_architecture_keys(form: str) -> dict[str, str]:
    """Read the field of each key of a config.json, or argument of Megatron; of several keys the first counts."""
    return dict(facts("architecture_keys").filter(form=form).select("key", "field").iter_rows())


@functools.cache
def load_presets() -> dict[str, Architecture]:
    """Load the shipped architectures by name; their sources are in ``hardware/facts/model_presets.csv``.

    Examples
    --------
    >>> load_presets()["llama-2-7b"].ffn
    11008
    """
    named = [name for name in list_architecture_fields() if name != "name"]
    return {
        row["preset"]: Architecture(
            row["preset"], **{name: _parse_field(name, row[name]) for name in named if row[name] is not None}
        )
        for row in facts("model_presets").iter_rows(named=True)
    }


_RELEASE_WORDS = frozenset({"instruct", "it", "chat", "base", "hf", "pt", "sft", "dpo", "thinking", "deduped", "meta"})
"""Words in model names that distinguish releases of one architecture."""


@functools.cache
def _presets_by_spelling() -> dict[str, str]:
    """Map every spelling of a preset to its name."""
    names: dict[str, str] = {}
    for row in facts("model_presets").select("preset", "aliases").iter_rows():
        for name in (row[0], *(row[1].split(";") if row[1] else ())):
            names[_fold_model_name(name)] = row[0]
    return names


_WEIGHT_FORMAT_SUFFIX_PATTERN = re.compile(
    r"[-_.](?:quantized[-_.])?((?:nv|mx)?fp[48]|awq|gptq|int[48]|w4a16|w8a8|bf16)(?:[-_.](?:block|dynamic|int4|kv|v\d))*$",
    re.IGNORECASE,
)
"""Format of weights at the end of a name on a hub."""


def load_preset(name: str) -> Architecture:
    """Load a shipped architecture by name or unique prefix.

    Examples
    --------
    >>> load_preset("Llama-3.1-8B").kv_heads
    8
    """
    architecture = find_preset(name)
    return (
        architecture or load_presets()[resolve_name(name, load_presets(), subject="model preset", error=ScenarioError)]
    )


def find_preset(name: str | None) -> Architecture | None:
    """Find a shipped architecture by an exact spelling, else None.

    Examples
    --------
    >>> find_preset("google/gemma-3-27b-it").layers, find_preset("gemma-3-28b")
    (62, None)
    """
    short_name = (name or "").rpartition("/")[2]
    words = [word for word in re.split(r"[-\s]+", short_name) if word.lower() not in _RELEASE_WORDS]
    preset_name = _presets_by_spelling().get(_fold_model_name(name or "")) or _presets_by_spelling().get(
        _fold_model_name("-".join(words))
    )
    return load_presets()[preset_name] if preset_name else None


_MAX_SIZE_RATIO_WITHIN_FAMILY = 1.6
"""Ratio of parameters up to which a preset of the same family stands for a model before one nearer in size."""


def find_nearest_preset(name: str, params: float | None) -> Architecture | None:
    """Find the shipped architecture whose name a model's name contains, else one near in family and size.

    The layers of the second are scaled to the parameters; without a parameter count there is none.

    Examples
    --------
    >>> find_nearest_preset("Llama-3.1-8B-Instruct-custom", 8e9).layers
    32
    >>> find_nearest_preset("our-model", 6.7e9).name, find_nearest_preset("our-model", None)
    ('llama-7b', None)
    """
    folded = _fold_model_name(name)
    contained = [spelling for spelling in _presets_by_spelling() if len(spelling) > 3 and spelling in folded]
    for spelling in sorted(contained, key=len, reverse=True):
        preset = load_presets()[_presets_by_spelling()[spelling]]
        if not params or 0.8 < preset.params() / params < 1.25:
            return preset
    if not params:
        return None
    family = re.match(r"[a-z]*", folded)
    dense = [preset for preset in load_presets().values() if preset.kind == "decoder" and not preset.experts]
    size_ratio = {preset.name: abs(math.log(preset.params() / params)) for preset in dense}
    near = min(dense, key=lambda preset: size_ratio[preset.name])
    if family and len(family[0]) > 2:
        relatives = [preset for preset in dense if preset.name.startswith(family[0])]
        kin = min(relatives, key=lambda preset: size_ratio[preset.name], default=near)
        near = kin if size_ratio[kin.name] < math.log(_MAX_SIZE_RATIO_WITHIN_FAMILY) else near
    if size_ratio[near.name] < math.log(1.05):
        return near
    ends = near.params() - near.layers * near.layer_params()
    return replace(near, layers=max(1, round((params - ends) / near.layer_params())))


def find_published_preset(name: str) -> Architecture | None:
    """Find a shipped architecture by the name of published weights, with the format at the end of the name.

    Examples
    --------
    >>> find_published_preset("Qwen/Qwen3-32B-FP8").released, find_published_preset("Qwen/Qwen3-32B").released
    ('FP8', '')
    """
    if model := find_preset(name):
        return model
    suffix, base_name = _WEIGHT_FORMAT_SUFFIX_PATTERN.search(name), _WEIGHT_FORMAT_SUFFIX_PATTERN.sub("", name)
    architecture = find_preset(base_name) or find_preset(base_name.replace("_", "-"))
    return replace(architecture, released=suffix[1]) if architecture and suffix else architecture


def parse_architecture(model: str) -> tuple[Architecture, list[str]]:
    """Parse an architecture from a preset name, a config.json, Megatron arguments or a short spec.

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
    >>> parse_architecture("layers=32 hidden=4096 heads=32 vocab=32000 params=6738415616")[0].ffn
    11008
    """
    if model.endswith(".json"):
        path = Path(model)
        try:
            return parse_config(json.loads(path.read_text("utf-8")), path.stem)
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            expected = "a readable config.json"
            raise ScenarioError(f"model {path.name}", expected, str(error), "Check the path.") from error
    if model.lstrip().startswith("--"):
        return parse_megatron_arguments(model.split())
    if "=" in model:
        return _parse_spec(dict(_split_assignment(word) for word in model.split()))
    return load_preset(model), []


def parse_config(config: Mapping[str, Any], name: str) -> tuple[Architecture, list[str]]:
    """Parse an architecture from a Hub-style config.

    Examples
    --------
    >>> parse_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "vocab_size": 100, "intermediate_size": 172}, "tiny")[0].params()
    111936
    """
    config = {**config, **config.get("text_config", {})}
    family = config.get("model_type", "")
    if family not in _FAMILIES:
        todo = "Give layers, hidden, heads, vocab and params as a spec instead."
        raise ScenarioError(f"model {name}, model_type", f"one of {', '.join(_FAMILIES)}", repr(family), todo)
    stated: dict[str, Any] = {}
    for key, field in _read_architecture_keys("config.json").items():
        if config.get(key) is not None:
            stated.setdefault(field, config[key])
    values = _FAMILIES[family] | stated
    values["gelu_new"] = "gelu_new" in (config.get("activation_function"), config.get("hidden_act"))
    if config.get("multi_query") and "num_kv_heads" not in config:
        values["kv_heads"] = 1
    values["qkv_bias"] = bool(config.get("attention_bias", values.get("qkv_bias", False)))
    notes = []
    if family in ("gpt2", "bloom", "gpt_neox", "phi", "opt", "bert"):
        values["positions"] = config.get("n_positions", config.get("max_position_embeddings", 0))
        values["positions"] *= family in ("gpt2", "opt", "bert")
    if "ffn" not in values and "hidden" in values and not values.get("experts"):
        values["ffn"] = 4 * values["hidden"]
        notes.append(f"MLP width assumed {values['ffn']}, 4 x hidden")
    if family == "qwen" and "ffn" in values:
        values["ffn"] //= 2  # its config counts both halves of the gate
    if values.get("experts"):
        values.setdefault("expert_ffn", values.get("ffn", 0))
        shared = config.get("n_shared_experts") or 0
        values["shared_ffn"] = shared * values["expert_ffn"]
    return _make_architecture(name, values), notes


def parse_megatron_arguments(words: Sequence[str]) -> tuple[Architecture, list[str]]:
    """Parse an architecture from Megatron or DeepSpeed arguments.

    Examples
    --------
    >>> words = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 100".split()
    >>> parse_megatron_arguments(words)[0].ffn
    256
    """
    values: dict[str, Any] = {**_GPT_STYLE_FIELDS, "tied": True}
    field_by_key = _read_architecture_keys("megatron")
    for word, value in zip(words, [*words[1:], ""], strict=True):
        key = word.lstrip("-").partition("=")[0]
        if word.startswith("--") and (field := field_by_key.get(key)):
            values[field] = _parse_field(field, word.partition("=")[2] or value)
    flags = {word.lstrip("-") for word in words}
    values["gated"] = "swiglu" in flags
    values["bias"] = "disable-bias-linear" not in flags
    values["tied"] = "untie-embeddings-and-output-weights" not in flags
    values["norm"] = "rms" if "RMSNorm" in words else "layer"
    notes = []
    if "ffn" not in values and "hidden" in values:
        values["ffn"] = 4 * values["hidden"]
        notes.append("MLP width 4 x hidden, Megatron's default")
    if values.get("experts"):
        values["expert_ffn"] = values["ffn"]
        values.setdefault("experts_active", 2)
    return _make_architecture("arguments", values), notes


def parse_params_label(text: str | None) -> float | None:
    """Parse the parameter count in a label such as ``GPT 20B``.

    Examples
    --------
    >>> parse_params_label("GPT 20B"), parse_params_label("bert-base")
    (20000000000.0, None)
    """
    match = _PARAMETER_COUNT_PATTERN.search((text or "").replace("-", " ").replace("_", "."))
    return float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6) if match else None


def _parse_spec(words: dict[str, str]) -> tuple[Architecture, list[str]]:
    """Parse fields by name; ``params`` may be a word (6.7B) or a number and determines a missing MLP width."""
    name, params_text = words.pop("name", "spec"), words.pop("params", None)
    choices = list_architecture_fields()
    fields = {key: resolve_name(key, choices, subject="field", error=ScenarioError) for key in words}
    values = {key: _parse_field(fields[key], text) for key, text in words.items()}
    label = params_text is not None and not params_text.replace(".", "", 1).isdigit()
    params = None if params_text is None else parse_params_label(params_text) if label else float(params_text)
    if params_text is not None and not params:
        raise ScenarioError("spec, params", "6.7B or a number", repr(params_text), "Give one of these.")
    if "ffn" not in values and not values.get("experts"):
        if params is None:
            expected = "ffn, or params from which it follows"
            raise ScenarioError("spec", expected, "neither", "Give one of them.")
        architecture = infer_mlp_width(_make_architecture(name, {**values, "ffn": 1}), params)
        return architecture, [f"MLP width {architecture.ffn} from {params:.4g} parameters"]
    architecture = _make_architecture(name, values)
    note = compare_params(architecture, params, label=label) if params else ""
    return architecture, [note] if note else []


def _make_architecture(name: str, values: Mapping[str, Any]) -> Architecture:
    """Create an architecture from fields; those without a value keep their default."""
    try:
        return Architecture(name, **{key: value for key, value in values.items() if value is not None})
    except TypeError as error:
        raise ScenarioError(f"model {name}", "numbers", str(error), "Check its fields.") from error


def _parse_field(field: str, text: str | float) -> Any:  # noqa: ANN401 - what the field is
    """Convert the text of a field of an architecture to its type."""
    if field in ("norm", "kind", "name", "released"):
        return text
    try:
        number = float(text)
    except ValueError:
        raise ScenarioError(f"model, {field}", "a number", repr(text), f"Fix {field}.") from None
    if field in ("gated", "tied", "bias", "qkv_bias", "qk_norm", "gelu_new"):
        return bool(number)
    return number if field.startswith("given") else int(number)


def _split_assignment(word: str) -> tuple[str, str]:
    """Split a word such as ``layers=32`` into field and value."""
    key, equals, value = word.partition("=")
    if not equals:
        raise ScenarioError("spec", "words such as layers=32", repr(word), "Write 'layers=32'.")
    return key, value


def _fold_model_name(name: str) -> str:
    """Return a model name without organisation, case and punctuation, for comparisons."""
    return re.sub(r"[^a-z0-9.]", "", name.lower().rpartition("/")[2].replace("_", "."))
