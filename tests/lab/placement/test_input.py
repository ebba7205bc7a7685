"""Lists and parameters that make no sense are refused by name."""

from __future__ import annotations

import gzip

import pytest

from gpuplanner.errors import ScenarioError, TraceFormatError
from gpuplanner.lab.placement import (
    Nodes,
    PlacementPolicy,
    Pods,
    allocate,
    fragmentation,
    read_nodes,
    read_pods,
    target_workload,
)

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
ONE = {"names": ["a"], "cpu_milli": [1000], "memory_mib": [1], "gpus": [1], "gpu_milli": [500]}
NODE = {"names": ["n"], "cpu_milli": [1000], "memory_mib": [1], "gpus": [1]}


def test_lists_are_read_whole(tmp_path):
    path = tmp_path / "pods.csv.gz"
    path.write_bytes(gzip.compress((PODS + "a,1,2,1,460,T4|A10,LS\nb,3,4,0,0,,BE\n").encode()))
    pods = read_pods(path)
    assert (pods.names, pods.models) == (("a", "b"), ("A10|T4", ""))
    assert (pods.cpu_milli.tolist(), pods.gpu_milli.tolist()) == ([1, 3], [460, 0])
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(NODES + "n1,64000,262144,2,P100\nn2,96000,1,0,\n")
    assert read_nodes(nodes).models == ("P100", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PODS, "no rows"),
        (PODS + "a,1,2,1,1001,,LS\n", "gpu_milli"),
        (PODS + "a,1,2,1.5,460,,LS\n", "not a whole number"),
        (PODS + "a,-1,2,1,460,,LS\n", "cpu_milli"),
        (PODS + "a,x,2,1,460,,LS\n", "cpu_milli"),
        ("name,cpu_milli\na,1\n", "memory_mib"),
    ],
)
def test_faulty_pod_lists(tmp_path, text, said):
    path = tmp_path / "pods.csv"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=said):
        read_pods(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpu_milli": [1001]}, "at most 1000; got 1 others: 'a'"),
        ({"gpus": [0]}, "both 0 or both above 0"),
        ({"gpus": [2]}, "1000 where several GPUs"),
        ({"gpus": [63], "gpu_milli": [1000]}, "at most 62"),
        ({"cpu_milli": [-1]}, "from 0 to"),
        ({"cpu_milli": [1.5]}, "a whole number for each"),
        ({"memory_mib": [1, 2]}, "a whole number for each of 1"),
        ({"models": ["a", "b"]}, "one for each of 1 pods"),
    ],
)
def test_impossible_pods(change, said):
    with pytest.raises(ScenarioError, match=said):
        Pods(**ONE | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": [63]}, "at most 62"),
        ({"memory_mib": [2**41]}, "from 0 to"),
        ({"models": []}, None),
        ({"models": ["a", "b"]}, "one for each of 1 nodes"),
    ],
)
def test_impossible_nodes(change, said):
    if said is None:
        assert Nodes(**NODE | change).models == ("",)
        return
    with pytest.raises(ScenarioError, match=said):
        Nodes(**NODE | change)


def test_twin_nodes():
    with pytest.raises(ScenarioError, match="each once"):
        Nodes(["n", "n"], [1, 1], [1, 1], [1, 1])


@pytest.mark.parametrize("given", [("best", "tightest"), ("best-fit", "tight"), ("fgd", "steepest", 0)])
def test_unknown_rules(given):
    with pytest.raises(ScenarioError, match="policy"):
        PlacementPolicy(*given)


def test_unknown_policy_name():
    with pytest.raises(ScenarioError, match="policy"):
        allocate(Pods(**ONE), Nodes(**NODE), "tetris")


@pytest.mark.parametrize("share", [0, 1.1, float("nan")])
def test_target_of_no_share(share):
    with pytest.raises(ScenarioError, match="popularity"):
        target_workload(Pods(**ONE), share)


def test_target_covers_just_enough():
    """80 % of ten pods: the first two kinds have eight, the third is not needed."""
    cpu = [1000] * 5 + [2000] * 3 + [3000] * 2
    pods = Pods(list("abcdefghij"), cpu, [0] * 10, [1] * 10, [500] * 10)
    assert target_workload(pods, 0.8).cpu_milli.tolist() == [1000, 2000]
    assert target_workload(pods, 0.81).cpu_milli.tolist() == [1000, 2000, 3000]
    assert target_workload(pods, 0.8).shares.tolist() == [0.625, 0.375]


@pytest.mark.parametrize("left", [[[1000]], [[1001], [0]], [1000, 1000], [[-1], [0]]])
def test_fragmentation_wants_a_row_per_node(left):
    nodes = Nodes(["a", "b"], [1, 1], [1, 1], [1, 1])
    with pytest.raises(ScenarioError, match="free_gpu_milli"):
        fragmentation(nodes, target_workload(Pods(**ONE)), free_cpu_milli=[1, 1], free_gpu_milli=left)


def test_too_many_kinds(monkeypatch):
    monkeypatch.setattr("gpuplanner.lab.placement.online.MAX_CELLS", 0)
    with pytest.raises(ScenarioError, match="kinds times nodes"):
        allocate(Pods(**ONE), Nodes(**NODE))


def test_a_name_that_is_not_there():
    import gpuplanner.lab.placement

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpuplanner.lab.placement.nothing
