"""Fleets whose GPU-hours are known are read as they are, or a warning or an error names what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from tests.examples import examples
from tests.ingest.blind_fleets.known import KNOWN_KUBERNETES, KNOWN_SLURM
from tests.ingest.blind_fleets.kubernetes_faults import FAULTS as KUBERNETES_FAULTS
from tests.ingest.blind_fleets.kubernetes_faults import faulty_kubernetes_fleets, unknown_resources
from tests.ingest.blind_fleets.kubernetes_forms import FORMS, fleet_of_form, share_fleets
from tests.ingest.blind_fleets.kubernetes_pods import kubernetes_fleets
from tests.ingest.blind_fleets.slurm import slurm_fleets
from tests.ingest.blind_fleets.slurm_faults import FAULTS as SLURM_FAULTS
from tests.ingest.blind_fleets.slurm_faults import faulty_slurm_fleets, unknown_words
from tests.ingest.blind_fleets.truth import Fleet, call, ingest_kubernetes, ingest_slurm, read

MANY = 200
QUIETLY = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}


@settings(max_examples=examples(MANY), **QUIETLY)
@given(slurm_fleets())
def test_slurm_is_exact(fleet: Fleet):
    assert read(fleet, ingest_slurm) is None


@pytest.mark.long
@settings(max_examples=examples(MANY), **QUIETLY)
@given(faulty_slurm_fleets())
def test_slurm_with_a_fault_is_never_silently_wrong(fleet: Fleet):
    assert read(fleet, ingest_slurm) is None


@settings(max_examples=examples(MANY), **QUIETLY)
@given(kubernetes_fleets())
def test_kubernetes_is_exact(fleet: Fleet):
    assert read(fleet, ingest_kubernetes) is None


@pytest.mark.long
@settings(max_examples=examples(MANY), **QUIETLY)
@given(faulty_kubernetes_fleets())
def test_kubernetes_with_a_fault_is_never_silently_wrong(fleet: Fleet):
    assert read(fleet, ingest_kubernetes) is None


@settings(max_examples=examples(MANY), **QUIETLY)
@given(share_fleets())
def test_forms_of_sharing_are_exact(fleet: Fleet):
    assert read(fleet, ingest_kubernetes) is None


@pytest.mark.long
@pytest.mark.parametrize("fault", SLURM_FAULTS, ids=lambda f: f.__name__)
def test_each_fault_of_slurm(fault):
    @settings(max_examples=MANY // 4, **QUIETLY)
    @given(fault())
    def never_silently_wrong(fleet: Fleet) -> None:
        assert read(fleet, ingest_slurm) is None

    never_silently_wrong()


@pytest.mark.long
@pytest.mark.parametrize("fault", KUBERNETES_FAULTS, ids=lambda f: f.__name__)
def test_each_fault_of_kubernetes(fault):
    @settings(max_examples=MANY // 4, **QUIETLY)
    @given(fault())
    def never_silently_wrong(fleet: Fleet) -> None:
        assert read(fleet, ingest_kubernetes) is None

    never_silently_wrong()


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [(slurm_fleets, ingest_slurm), (kubernetes_fleets, ingest_kubernetes)],
    ids=["slurm", "kubernetes"],
)
def test_many_fleets_are_exact(strategy, arguments):
    @settings(max_examples=MANY, **QUIETLY)
    @given(strategy())
    def exact(fleet: Fleet) -> None:
        assert read(fleet, arguments) is None

    exact()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FORMS))
def test_each_form_of_sharing(name):
    assert read(fleet_of_form(name, [(0, 3600), (5, 7200), (1, 1801)]), ingest_kubernetes) is None


@pytest.mark.parametrize("name", KNOWN_SLURM)
def test_known_errors_of_slurm(name):
    assert read(KNOWN_SLURM[name], ingest_slurm) is None


@pytest.mark.parametrize("name", KNOWN_KUBERNETES)
def test_past_errors_of_kubernetes(name):
    assert read(KNOWN_KUBERNETES[name], ingest_kubernetes) is None


@pytest.mark.long
@pytest.mark.parametrize("fault", [unknown_words, unknown_resources], ids=["slurm", "kubernetes"])
def test_first_screen_shows_warnings(fault, tmp_path_factory):
    @settings(max_examples=3, **QUIETLY)
    @given(fault())
    def shown(fleet: Fleet) -> None:
        folder = tmp_path_factory.mktemp("start")
        assert fleet.fault is not None
        paths = [str(path) for path in fleet.write(folder)]
        out = folder / "out"
        code, text, message = call("start", *paths, "--yes", "--no-page", "--tz", "UTC", "-o", str(out))
        if not (out / "data").is_dir():
            assert code != 0
            assert len(message.split()) > 5
            return
        described = json.loads(call("describe", str(out / "data"), "--json")[1])
        screen = " ".join(text.split()) + " ".join(message.split())
        for warning in described["warnings"]:
            assert warning["what"].split("(")[0].strip()[:40] in screen, (warning, screen)

    shown()
