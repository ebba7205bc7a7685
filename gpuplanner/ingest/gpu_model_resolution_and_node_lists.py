"""Resolution of a source's device words to GPU models and MIG profiles, and parsing of node lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples, resolve_name
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.catalog import list_gpu_models, match_gpu_models
from gpuplanner.hardware.gpu_model_names import (
    DeviceName,
    GpuFraction,
    common_gpu_fraction,
    find_profile_name,
    parse_device_name,
    possible_gpu_models,
)
from gpuplanner.hardware.gpu_models import load_any_gpu_model
from gpuplanner.hardware.layout_enumeration import find_fewest_gpus
from gpuplanner.hardware.mig_layouts import format_layout

AMBIGUOUS_DEVICE_WORD = "?"
"""Device word of a GPU without a type on a node with several types of GPUs or MIG instances."""
SHARE_RESOURCES = ("shard", "mps")
"""Slurm resources (GRES) by which jobs share a GPU."""
SHARE_PATTERN = re.compile(rf"(?P<name>{'|'.join(SHARE_RESOURCES)})(?::(?P<type>[^@]+))?(?:@(?P<parts>\d+(?:\.\d+)?))?")
"""Device word of a share of a GPU, such as ``shard:a100@4``: resource, GPU type and number of shares per GPU where they
are stated."""
PARTITION_WORD_PATTERN = re.compile(r"(?P<word>[^@]+)@(?P<parts>\d+)")
"""Device word of a partition of a GPU, such as ``mi300x@8``: GPU type and number of partitions per GPU."""


@dataclass(frozen=True)
class ResolvedDevice:
    """GPU model, MIG profile and share of a GPU that one device word, such as ``a100_1g.5gb``, means.

    - ``gpu_model``: GPU model of the catalogue; None if the word does not decide it.
    - ``profile``: MIG profile, as the GPU model lists it where that is known; None for a full GPU.
    - ``share``: Share of a GPU that one such device is; None if unknown.
    - ``candidates``: GPU models that the word may mean.
    """

    gpu_model: str | None
    profile: str | None
    share: GpuFraction | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class DeviceResolver:
    """Resolver of the device words of one source: the words by which it names GPUs, such as ``a100_1g.5gb``.

    - ``stated_models``: Word in small letters → GPU model that the user stated, or GPU model and MIG profile with a
      colon.
    - ``models_by_word``: Word → GPU models that have all the MIG profiles named with it.
    - ``installed_models``: GPU models of the inventory.
    """

    stated_models: Mapping[str, str] = field(default_factory=dict)
    models_by_word: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    installed_models: tuple[str, ...] = ()

    @classmethod
    def from_words(cls, words: Iterable[str], stated_models: Mapping[str, str] | None) -> DeviceResolver:
        """Return the resolver of a cluster by all device words in use, and the models that the user stated for some."""
        return cls(validate_gpu_mapping(stated_models), infer_models_from_profiles(map(parse_device_name, words)))

    def resolve_word(self, word: str | None, node_models: Collection[str] = ()) -> ResolvedDevice:
        """Resolve a device word to GPU model, MIG profile and share of a GPU.

        The user's statement goes first, then the word and the profile in it, then the GPU models on the nodes of the
        job, then those in the inventory, then the profiles that the source names with the same word elsewhere.

        Parameters
        ----------
        word : str, optional
            Word of the source; None for a GPU without a type.
        node_models : collection of str
            GPU models on the nodes where the device is.

        Examples
        --------
        >>> resolver = DeviceResolver()
        >>> resolver.resolve_word("a100_3g.20gb").gpu_model, round(resolver.resolve_word("1g.10gb").share.compute, 4)
        ('A100-40GB', 0.1429)
        >>> DeviceResolver(stated_models={"a100": "A100-80GB"}).resolve_word("a100").gpu_model
        'A100-80GB'
        >>> DeviceResolver(stated_models={"small": "A100-80GB:1g.10gb"}).resolve_word("small").profile
        '1g.10gb'
        >>> DeviceResolver().resolve_word("shard@4").share.compute, DeviceResolver().resolve_word("mps").share
        (0.25, None)
        """
        if word == AMBIGUOUS_DEVICE_WORD:
            return ResolvedDevice(None, None, None, tuple(node_models))
        if (match := SHARE_PATTERN.fullmatch(word or "")) is not None:
            size = None if match["parts"] is None else 1.0 / float(match["parts"])
            gpu_model = node_models[0] if len(node_models := tuple(node_models)) == 1 else None
            if match["type"]:
                gpu_model = self.resolve_word(match["type"], node_models).gpu_model or match["type"]
            profile, share = (match["name"], None) if size is None else (None, GpuFraction(size, size))
            return ResolvedDevice(gpu_model, profile, share, node_models)
        if (match := PARTITION_WORD_PATTERN.fullmatch(word or "")) is not None:
            full_device, size = self.resolve_word(match["word"], node_models), 1.0 / int(match["parts"])
            return ResolvedDevice(full_device.gpu_model, None, GpuFraction(size, size), full_device.candidates)
        device_word, stated_model = self.split_word(word), (self._stated_model(word) or "").partition(":")[0]
        candidates = (
            (stated_model,) if stated_model else possible_gpu_models(device_word.gpu_model, device_word.profile)
        )
        is_nameless = device_word.gpu_model is None and device_word.profile is None
        models_of_word = self.models_by_word.get(device_word.gpu_model or "", ())
        for likely_models in (node_models, self.installed_models, models_of_word):
            likely_names = {gpu_model for name in likely_models for gpu_model in possible_models(name)}
            likely_candidates = tuple(gpu_model for gpu_model in candidates if gpu_model in likely_names)
            candidates = (tuple(likely_models) if is_nameless and not candidates else likely_candidates) or candidates
        gpu_model = candidates[0] if len(candidates) == 1 else None
        profile = device_word.profile and (
            (gpu_model and find_profile_name(gpu_model, device_word.profile)) or device_word.profile
        )
        return ResolvedDevice(gpu_model, profile, common_gpu_fraction(candidates, device_word.profile), candidates)

    def split_word(self, word: str | None) -> DeviceName:
        """Split a device word into GPU model and MIG profile; a profile that the user stated goes first."""
        device_word = parse_device_name(word or FULL_GPU)
        _, _, profile = (self._stated_model(word) or "").partition(":")
        return DeviceName(device_word.gpu_model, profile or device_word.profile)

    def _stated_model(self, word: str | None) -> str | None:
        """Return the GPU model that the user stated for a word."""
        return next((self.stated_models[key] for key in mapping_keys(word) if key in self.stated_models), None)


def possible_models(model: str) -> tuple[str, ...]:
    """Return the GPU models that a model name of an inventory may mean, or the name itself if none is known.

    Examples
    --------
    >>> possible_models("A100-40GB"), possible_models("a100"), possible_models("Tesla")
    (('A100-40GB',), ('A100-40GB', 'A100-80GB'), ('tesla',))
    """
    models: dict[str, None] = {}
    for word in model.split("|"):
        meant_models = (
            (word,) if word in list_gpu_models() else possible_gpu_models(parse_device_name(word).gpu_model, None)
        )
        models |= dict.fromkeys(meant_models or (word.lower(),))
    return tuple(models)


def mapping_keys(word: str | None) -> tuple[str, ...]:
    """Return the keys of the user's mapping that apply to a device word: the word, then its GPU model part.

    Examples
    --------
    >>> mapping_keys("A100_1g.5gb"), mapping_keys(None)
    (('a100_1g.5gb', 'a100'), ('gpu',))
    """
    gpu_model = parse_device_name(word or FULL_GPU).gpu_model or FULL_GPU
    return tuple(dict.fromkeys(key.casefold() for key in (word or FULL_GPU, gpu_model)))


def validate_gpu_mapping(mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Validate the user's mapping (--map-gpu) from device words to GPU models, optionally with ``:profile``.

    Raises
    ------
    TraceFormatError
        If a name means no GPU model or several, or the model lacks the profile.

    Examples
    --------
    >>> validate_gpu_mapping({"A100": "a100-80", "gpu": "NVIDIA H100 80GB HBM3", "small": "a100-80:1g.10gb"})
    {'a100': 'A100-80GB', 'gpu': 'H100-80GB-SXM5', 'small': 'A100-80GB:1g.10gb'}
    """
    models_by_word: dict[str, str] = {}
    for word, text in (mapping or {}).items():
        name, _, stated_profile = text.partition(":")
        location, matching_models = f"GPU model of {word!r}", match_gpu_models(name)
        if len(matching_models) > 1:
            got = f"{name!r}: {examples(matching_models)}"
            raise TraceFormatError(location, "one GPU model", got, "Name one of them.")
        [gpu_model] = matching_models or [
            resolve_name(name, list_gpu_models(), subject="board", error=TraceFormatError)
        ]
        profile = find_profile_name(gpu_model, stated_profile) if stated_profile else None
        if stated_profile and profile is None:
            profile_names = [profile.name for profile in load_any_gpu_model(gpu_model).profiles]
            expected, todo = f"no profile: {gpu_model} has none", f"Give --map-gpu {word}={name} alone."
            if profile_names:
                expected, todo = f"a MIG profile of {gpu_model}: {', '.join(profile_names)}", "Name one of them."
            raise TraceFormatError(location, expected, repr(stated_profile), todo)
        models_by_word[word.casefold()] = f"{gpu_model}:{profile}" if profile else gpu_model
    return models_by_word


def smallest_layouts(gpu_models: Collection[str], counts: Mapping[str, int]) -> list[str] | None:
    """Return the MIG layouts of the fewest GPUs that hold `counts` (MIG profile → number of instances).

    None without candidate `gpu_models`, or where these differ in the number of GPUs.

    Examples
    --------
    >>> smallest_layouts(["A100-40GB"], {"1g.5gb": 9}), smallest_layouts([], {"1g.5gb": 9})
    (['1g.5gb:7', '1g.5gb:2'], None)
    """
    layouts_by_model = [find_fewest_gpus(gpu_model, counts) for gpu_model in gpu_models]
    sizes = {None if layouts is None else len(layouts) for layouts in layouts_by_model}
    if len(sizes) != 1 or None in sizes:
        return None
    return [format_layout(layouts) for layouts in layouts_by_model[0] or ()]


def infer_models_from_profiles(words: Iterable[DeviceName]) -> dict[str, tuple[str, ...]]:
    """Infer for each GPU model word of a source the models that have all MIG profiles named with it.

    Examples
    --------
    >>> device_words = map(parse_device_name, ("a100_1g.5gb", "a100", "h100"))
    >>> infer_models_from_profiles(device_words)
    {'a100': ('A100-40GB',)}
    """
    models_by_profile: dict[str, list[tuple[str, ...]]] = {}
    for gpu_model, profile in sorted({(word.gpu_model or "", word.profile or "") for word in words}):
        if gpu_model and profile:
            models_by_profile.setdefault(gpu_model, []).append(possible_gpu_models(gpu_model, profile))
    common_models = {
        word: tuple(model for model in model_sets[0] if all(model in models for models in model_sets))
        for word, model_sets in models_by_profile.items()
    }
    return {word: models for word, models in common_models.items() if models and match_gpu_models(word)}


MAX_NODES_PER_LIST = 100_000
"""Largest number of node names that one node list may expand to."""
NODE_LIST_GROUP_PATTERN = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\s-]*)\])?([^\[\],\s]*)(?:,\s*|$)")
"""One name or bracketed group of a Slurm node list."""


def expand_node_list(text: str) -> list[str]:
    """Expand a Slurm node list, or a comma-separated list, to node names.

    Examples
    --------
    >>> expand_node_list("n[01-03,7],login1")
    ['n01', 'n02', 'n03', 'n7', 'login1']
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = NODE_LIST_GROUP_PATTERN.match(text, position)
        if match is None or match.end() == position or len(names) > MAX_NODES_PER_LIST:
            todo = "Expand it: scontrol show hostnames."
            raise TraceFormatError("node list", "names like n[01-03,7]", repr(text[:80]), todo)
        head, numbers, tail = match.groups()
        names += [f"{head}{number}{tail}" for number in (_expand_number_ranges(numbers) if numbers else [""])]
        position = match.end()
    return names


def try_expand_node_list(text: str) -> list[str] | None:
    """Expand a node list; None if it is empty or malformed.

    Examples
    --------
    >>> try_expand_node_list("n[1-2]"), try_expand_node_list("n[1")
    (['n1', 'n2'], None)
    """
    try:
        return expand_node_list(text) or None
    except TraceFormatError:
        return None


def expand_unique_node_lists(jobs: pl.DataFrame) -> pl.DataFrame:
    """Expand each distinct node list of jobs once: columns ``node_list`` and ``node``, a list of node names."""
    lists = jobs["node_list"].drop_nulls().unique()
    schema = {"node_list": lists.dtype, "node": pl.List(pl.String)}
    return pl.DataFrame({"node_list": lists, "node": [try_expand_node_list(text) for text in lists]}, schema=schema)


def spread_gpus_over_nodes(jobs: pl.DataFrame) -> pl.DataFrame:
    """List each job once for every node of its node list, with its GPUs divided evenly.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [8.0, 1.0], "node_list": ["n[1-2]", None]})
    >>> spread_gpus_over_nodes(jobs).select("job_id", "node", "gpus").rows()
    [('1', 'n1', 4.0), ('1', 'n2', 4.0), ('2', None, 1.0)]
    """
    spread = jobs.join(expand_unique_node_lists(jobs), on="node_list", how="left", maintain_order="left")
    n_nodes = pl.col("node").list.len().fill_null(1)
    count_columns = [name for name in ("gpus", "instances") if name in jobs.columns]
    return spread.with_columns(pl.col(count_columns) / n_nodes).explode("node")


def _expand_number_ranges(text: str) -> list[str]:
    """Expand number ranges such as ``01-03,7``."""
    numbers: list[str] = []
    for part in text.replace(" ", "").split(","):
        first, dash, range_end = part.partition("-")
        last = range_end if dash else first
        if not (first.isdigit() and last.isdigit()) or int(last) - int(first) > MAX_NODES_PER_LIST:
            raise TraceFormatError("node list", "ranges like 01-03", repr(part), "Expand it.")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers
