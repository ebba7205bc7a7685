"""Words of Kubernetes at their limits: what an object of the API may say, and what is refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.inbox.kubernetes import objects
from gpuplanner.schemas.domain import MAX_GPUS_PER_JOB

BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@given(number=st.integers(0, 999), power=st.integers(1, 6))
def test_suffixes_are_powers_of_a_thousand_or_of_1024(number, power):
    assert objects.quantity(f"{number}{'kMGTPE'[power - 1]}") == number * Decimal(1000) ** power
    assert objects.quantity(f"{number}{BINARY[power - 1]}") == number * Decimal(1024) ** power
    assert objects.quantity(number) == number


@pytest.mark.parametrize("value", [0, 1, MAX_GPUS_PER_JOB])
def test_as_many_gpus_as_a_job_may_have_are_counted(value):
    assert objects.count(str(value), "limits") == value


@pytest.mark.parametrize("value", [-1, "0.5", MAX_GPUS_PER_JOB + 1, "many", True, None])
def test_what_is_no_number_of_gpus_is_refused_by_its_place(value):
    with pytest.raises(ValueError, match="limits"):
        objects.count(value, "limits")


@pytest.mark.parametrize(("value", "read"), [("0", 0), ("100", 100), ("-1", None), ("100.5", None)])
def test_a_share_lies_within_its_limits(value, read):
    if read is not None:
        assert objects.within({"cores": value}, "cores", 100) == Fraction(read)
        return
    with pytest.raises(ValueError, match=r"cores: .* is not between 0 and 100"):
        objects.within({"cores": value}, "cores", 100)


@pytest.mark.parametrize("value", ["text", 3, [], [{}]])
def test_where_an_object_is_due_nothing_else_is_taken_for_one(value):
    assert objects.part({"spec": {"a": 1}}, "spec") == {"a": 1}
    assert objects.part({}, "spec") == {}
    with pytest.raises(ValueError, match="spec: not an object"):
        objects.part({"spec": value}, "spec")


@pytest.mark.parametrize("value", ["text", 3, {}, ["a"], [{}, None]])
def test_where_objects_are_due_nothing_else_is_taken_for_them(value):
    assert list(objects.parts({"items": [{}, {"a": 1}]}, "items")) == [{}, {"a": 1}]
    assert list(objects.parts({}, "items")) == []
    with pytest.raises(ValueError, match="items: not a list of objects"):
        list(objects.parts({"items": value}, "items"))


def test_instants_are_of_these_days_and_say_where_they_are():
    assert objects.instant({"at": "2026-02-02T10:00:00+02:00"}, "at") == datetime(2026, 2, 2, 8, tzinfo=UTC)
    assert objects.instant({"at": "1970-01-01T00:00:00Z"}, "at") == datetime(1970, 1, 1, tzinfo=UTC)
    for wrong in ("2026-02-02T10:00:00", "1969-12-31T23:59:59Z", "2100-01-01T00:00:00Z", "noon", 5):
        with pytest.raises(ValueError, match="at: "):
            objects.instant({"at": wrong}, "at")


def test_of_conditions_the_one_that_is_asked_for_is_told():
    status = {
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Drained",
                "lastTransitionTime": "2026-02-02T08:00:00Z",
            },
            {"type": "Disk", "status": "True"},
        ]
    }
    assert objects.condition(status, "Ready") == (False, "Drained", datetime(2026, 2, 2, 8, tzinfo=UTC))
    assert objects.condition(status, "Disk") == (True, "", None)
    assert objects.condition(status, "Network") == (False, "", None)


def test_text_that_cannot_be_shown_is_refused():
    assert [objects.text(value) for value in ("a b", "", None, 4)] == ["a b", None, None, None]
    with pytest.raises(ValueError, match="a control character"):
        objects.text("a\x1b[31m")
