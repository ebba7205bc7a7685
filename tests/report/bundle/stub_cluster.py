"""A cluster as one file: what kubectl, Slurm, ssh and mig-parted say and do, as far as our scripts ask them.

The commands are this program under other names, so that they run in any shell. What a node advertises follows from what
mig-parted is told by the files that were handed over, and from nothing else.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

COMMANDS = ("kubectl", "scontrol", "squeue", "ssh", "scp", "systemctl", "helm")
POLICY = "clusterpolicies.nvidia.com/cluster-policy"


class Stub:
    """A folder with the state of a cluster and the commands that change it."""

    def __init__(
        self, folder: Path, nodes: dict[str, list[str]], *, gres_type: str = "", published: bool = False
    ) -> None:
        """With `published`, a DRA driver instead of a device plugin lists what it finds as it starts."""
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        for name in COMMANDS:
            path = self.bin / name
            # Without site: a script asks some hundred times, and most of the time would be that of the interpreter.
            path.write_text(f"#!{sys.executable} -S\nexec(open({__file__!r}).read())\n")
            path.chmod(0o755)
        state = {
            "type": gres_type,
            "published": nodes if published else None,
            "nodes": {name: _node(layouts) for name, layouts in nodes.items()},
            "objects": {
                POLICY: {
                    "metadata": {"name": "cluster-policy"},
                    "spec": {"mig": {"strategy": "single"}, "migManager": {"config": {"name": "theirs"}}},
                }
            },
        }
        self.write(state)
        lines = [f"NodeName={name} CPUs=8 Gres={_gres(layouts, gres_type)}" for name, layouts in nodes.items()]
        (folder / "slurm.conf").write_text("\n".join(["GresTypes=gpu", *lines, ""]))

    def write(self, state: dict[str, Any]) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    def snapshot(self) -> Any:
        """What can be told apart from outside."""
        state = self.state
        return state["nodes"], state["objects"], (self.folder / "slurm.conf").read_text()

    def offers(self, node: str) -> dict[str, int]:
        """Instances of a node by profile."""
        return dict(_counts(self.state["nodes"][node]["layouts"]))

    def run(self, commands: str, where: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run commands as an operator would."""
        import subprocess

        environment = {
            **os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "STUB": str(self.folder),
            "XDG_STATE_HOME": str(self.folder.with_name("state-home")),
            "STUB_YAML": str(Path(_yaml().__file__).parents[1]),
            "SLURM_CONF": str(self.folder / "slurm.conf"), "TIMEOUT_S": "0", "REPARTITION_S": "0",
            "PROGRAMS": str(self.folder / "programs"), "POLL_S": "0.01", **more,
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=where, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip


def fenced(page: str, section: str) -> str:
    """The commands of one section of a page."""
    [text] = re.findall(rf"^## (?:\d\. )?{section}\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    return "\n".join(re.findall(r"```bash\n(.*?)\n```", text, re.S))


def _yaml() -> Any:
    """Loaded by the few commands that read it."""
    sys.path.append(os.environ.get("STUB_YAML", ""))
    import yaml

    return yaml


def _name(one: dict[str, Any]) -> str:
    """By what an object is known: kinds that two groups have stand with their group."""
    kind = _resource(one) if one["kind"] == "Queue" else one["kind"].lower()
    space = one["metadata"]["namespace"] if one["kind"] == "LocalQueue" else ""
    return "/".join(filter(None, [kind, space, one["metadata"]["name"]]))


def _resource(one: dict[str, Any]) -> str:
    """Its kind as a server lists it."""
    kind = one.get("kind", "").lower()
    plural = kind.removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s"
    return f"{plural}.{one.get('apiVersion', '').partition('/')[0]}"


def _node(layouts: list[str]) -> dict[str, Any]:
    return {
        "layouts": layouts, "labels": {}, "annotations": {}, "pods": [], "unschedulable": False, "gone": False,
        "state": "IDLE", "reason": "", "jobs": [], "gres": None, "files": {},
    }  # fmt: skip


def _counts(layouts: list[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for text in layouts:
        for part in ["gpu:1"] if text == "gpu" else text.split(","):
            name, _, count = part.rpartition(":")
            found[name] += int(count)
    return found


def _gres(layouts: list[str], whole: str) -> str:
    counts = _counts(layouts)
    return ",".join(f"gpu:{whole if name == 'gpu' else f'{whole}_{name}'}:{count}" for name, count in counts.items())


def _cut(gpus: int, config: str, text: str) -> list[str]:
    """Layouts of a node's GPUs as mig-parted would cut them."""
    layouts = ["gpu"] * gpus
    for entry in _yaml().safe_load(text)["mig-configs"][config]:
        for gpu in range(gpus) if entry["devices"] == "all" else entry["devices"]:
            devices = entry.get("mig-devices") or {}
            layouts[gpu] = (
                ",".join(f"{name}:{count}" for name, count in devices.items()) if entry["mig-enabled"] else "gpu"
            )
    return layouts


def _as_config(layouts: list[str], name: str) -> str:
    entries = [
        {"devices": [gpu], "mig-enabled": text != "gpu", "mig-devices": {} if text == "gpu" else dict(_counts([text]))}
        for gpu, text in enumerate(layouts)
    ]
    return _yaml().safe_dump({"version": "v1", "mig-configs": {name: entries}})


class Commands:
    """What each command does to the state."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self.state, self.folder = state, folder
        self.nodes, self.objects = state["nodes"], state["objects"]

    def kubectl(self, *words: str) -> str:
        verb, plain = words[0], [word for word in words if not word.startswith("-")]
        if verb in ("apply", "delete") and "-f" in words:
            file = words[words.index("-f") + 1]
            for one in filter(None, _yaml().safe_load_all(sys.stdin if file == "-" else Path(file).read_text())):
                name = _name(one)
                if verb == "apply":
                    self.objects[name] = one
                else:
                    self.objects.pop(name, None)
            return ""
        if words[:2] == ("delete", "configmap"):
            self.objects.pop(f"configmap/{words[2]}", None)
            return ""
        if verb == "get" and "--ignore-not-found" in words and "-f" in words:
            mine = _yaml().safe_load_all(Path(words[words.index("-f") + 1]).read_text())
            there = [self.objects[_name(one)] for one in filter(None, mine) if _name(one) in self.objects]
            return _yaml().safe_dump({"kind": "List", "items": there}) if there else ""
        if verb == "diff":
            mine = _yaml().safe_load_all(Path(words[2]).read_text())
            if any(self.objects.get(_name(one)) != one for one in filter(None, mine)):
                raise SystemExit(1)
            return ""
        if verb == "replace":
            items = _yaml().safe_load(Path(words[2]).read_text())["items"]
            self.objects.update({_name(one): one for one in items})
            return ""
        if words[:2] == ("delete", "pods"):
            node = words[-1].removeprefix("spec.nodeName=")
            self.state["published"][node] = self.nodes[node]["layouts"]
            return ""
        if verb == "delete" and "--selector" in words:
            key, _, value = words[words.index("--selector") + 1].partition("=")
            for name, one in list(self.objects.items()):
                ours = one.get("metadata", {}).get("labels", {}).get(key) == value
                if ours and _resource(one) in words[1].split(","):
                    del self.objects[name]
            return ""
        if verb == "get":
            return self.get(words, plain)
        if verb == "patch":
            key, patch = f"{words[1]}/{words[2]}", json.loads(words[words.index("--patch") + 1])
            _merge(self.objects[key], patch)
            return ""
        if verb in ("annotate", "label"):
            held = self.nodes[plain[2]] if plain[1] == "node" else self.objects[f"{plain[1]}/{plain[2]}"]["metadata"]
            kept = held.setdefault("annotations" if verb == "annotate" else "labels", {})
            for word in plain[3:]:
                if "=" in word:
                    kept[word.partition("=")[0]] = word.partition("=")[2]
                else:
                    kept.pop(word.removesuffix("-"), None)
            if "nvidia.com/mig.config" in kept and verb == "label" and "nvidia.com/mig.config.state" not in kept:
                self.cut_by_label(held)
            return ""
        if verb in ("cordon", "uncordon"):
            self.nodes[words[1]]["unschedulable"] = verb == "cordon"
            return ""
        if verb == "drain":
            return ""
        raise SystemExit(f"kubectl {words}")

    def cut_by_label(self, node: dict[str, Any]) -> None:
        name = self.objects[POLICY]["spec"]["migManager"]["config"]["name"]
        text = self.objects[f"configmap/{name}"]["data"]["config.yaml"]
        node["layouts"] = _cut(len(node["layouts"]), node["labels"]["nvidia.com/mig.config"], text)
        node["labels"]["nvidia.com/mig.config.state"] = "success"

    def get(self, words: tuple[str, ...], plain: list[str]) -> str:
        out = next((word for word in words if word.startswith(("jsonpath", "go-template", "name"))), "")
        if plain[1] == "resourceslices" and out.startswith("go-template"):
            published = self.state["published"] or {}
            name = re.search(r"spec.nodeName=([^,]+)", " ".join(words))[1]  # type: ignore[index]
            counts = _counts(published.get(name, [])).items()
            return "".join(f"nvidia.com/{kind if kind == 'gpu' else 'mig-' + kind}\n" * n for kind, n in counts)
        if plain[1] in ("crd", "resourceslices", "deployment") or "-f" in words:
            if plain[1] == "deployment":
                raise SystemExit(1)
            return f"{plain[1]}\n"
        if plain[1] == "configmap":
            held = self.objects.get(f"configmap/{plain[2]}")
            return held["data"]["config.yaml"] if held else ""
        if plain[1] == "pods":
            name = re.search(r"spec.nodeName=([^,]+)", " ".join(words))[1]  # type: ignore[index]
            return "".join(f"{pod} nvidia.com/gpu\n" for pod in self.nodes[name]["pods"])
        if plain[1] == "clusterpolicies.nvidia.com":
            policy = self.objects[POLICY]
            if "range" in out:
                return "cluster-policy {} {}".format(
                    policy["spec"]["migManager"]["config"]["name"], policy["spec"]["mig"]["strategy"]
                )
            return "cluster-policy" if "items" in out else _at(policy, out)
        if plain[1] == "nodes":
            labels = (node["labels"].get("nvidia.com/mig.config", "") for node in self.nodes.values())
            return "".join(f"{label}\n" for label in labels)
        node = self.nodes.get(plain[2])
        if node is None or node["gone"]:
            return ""
        if out == "name":
            return f"node/{plain[2]}\n"
        if "allocatable" in out and self.state["published"]:
            return ""
        if "allocatable" in out:
            return "".join(
                f"nvidia.com/{name if name == 'gpu' else 'mig-' + name.replace('+', '.')}={count}\n"
                for name, count in _counts(node["layouts"]).items()
            )
        if "unschedulable" in out:
            return "true" if node["unschedulable"] else ""
        return _at({"metadata": node}, out)

    def helm(self, *words: str) -> str:
        if words[0] == "uninstall":
            del self.objects[f"helm/{words[1]}"]
        elif words[0] == "upgrade":
            self.objects[f"helm/{words[2]}"] = {"words": list(words)}
        return ""

    def scp(self, source: str, target: str) -> str:
        node, _, place = target.partition(":")
        self.nodes[node]["files"][place] = Path(source).read_text()
        return ""

    def ssh(self, name: str, *words: str) -> str:
        node = self.nodes[name]
        if words[0] == "nvidia-smi":
            return "".join(f"{pod}\n" for pod in node["pods"] + node["jobs"])
        if words[0] != "nvidia-mig-parted":
            return ""
        verb, layouts = words[1], node["layouts"]
        if verb == "export":
            return _as_config(layouts, words[words.index("-l") + 1])
        file, config = words[words.index("-f") + 1], words[words.index("-c") + 1]
        text = sys.stdin.read() if file == "-" else node["files"][file]
        then = _cut(len(layouts), config, text)
        if verb == "apply":
            node["layouts"] = then
        elif "--valid-config" not in words and [_counts([one]) for one in then] != [_counts([one]) for one in layouts]:
            raise SystemExit(1)
        return ""

    def systemctl(self, *words: str) -> str:
        if words[:2] == ("restart", "slurmctld"):
            self.renew()
        return ""

    def renew(self) -> None:
        for line in (self.folder / "slurm.conf").read_text().splitlines():
            if found := re.match(r"NodeName=(\S+).* Gres=(\S+)", line):
                node = self.nodes[found[1]]
                node["gres"] = found[2]
                has = _gres(node["layouts"], self.state["type"])
                fits = sorted(node["gres"].split(",")) == sorted(has.split(","))
                node["state"] = node["state"].replace("+INVALID_REG", "") + ("" if fits else "+INVALID_REG")

    def conf(self) -> str:
        """slurm.conf with what it includes."""
        text = (self.folder / "slurm.conf").read_text()
        return text + "".join((self.folder / name).read_text() for name in re.findall(r"^Include (\S+)", text, re.M))

    def scontrol(self, *words: str) -> str:
        match words[:2]:
            case ("--version", *_):
                return "slurm 23.11.4\n"
            case ("show", "node"):
                node = self.nodes[words[2]]
                gres = node["gres"] or _gres(node["layouts"], self.state["type"])
                return (
                    f"NodeName={words[2]} CoresPerSocket=1\n   Gres={gres}\n   State={node['state']} Weight=1\n"
                    f"   Reason={node['reason']} [root@2026-11-02T08:00:00]\n"
                )
            case ("show", "hostnames"):
                return "".join(f"{name}\n" for name in words[2].split(","))
            case ("show", "reservation"):
                if f"reservation/{words[2]}" not in self.objects:
                    raise SystemExit(1)
                return ""
            case ("create" | "delete", *_):
                name = next(word.partition("=")[2] for word in words if word.startswith("reservationname="))
                self.objects.pop(f"reservation/{name}", None)
                if words[0] == "create":
                    self.objects[f"reservation/{name}"] = {"words": list(words)}
                return ""
            case ("show", "config"):
                lines = re.findall(r"^(\w+)=(\S+)$", self.conf(), re.M)
                return "".join(f"{key:24}= {value}\n" for key, value in lines)
            case ("show", "partition"):
                if f"PartitionName={words[2]} " not in self.conf():
                    raise SystemExit(1)
                return ""
            case ("ping", *_):
                return ""
            case ("reconfigure", *_):
                self.renew()
                return ""
        values = dict(word.partition("=")[::2] for word in words[1:])
        if values["nodename"] not in self.nodes:
            assert f"NodeName={values['nodename']} " in self.conf()
            return ""
        node = self.nodes[values["nodename"]]
        if values["state"] == "drain":
            node["state"], node["reason"] = "IDLE+DRAIN", values["reason"]
        elif values["state"] == "resume":
            node["state"], node["reason"] = "IDLE", ""
        return ""

    def squeue(self, *words: str) -> str:
        [names] = [word.partition("=")[2] for word in words if word.startswith("--nodelist=")]
        return "".join(f"{job}\n" for name in names.split(",") for job in self.nodes[name]["jobs"])


def _merge(held: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(held.setdefault(key, {}), value)
        else:
            held[key] = value


def _at(held: Any, path: str) -> str:
    found = held
    for key in re.findall(r"(?:\\\.|[^.{}])+", path.removeprefix("jsonpath=")):
        found = (found or {}).get(key.replace("\\.", "."))
    return "" if found is None else str(found)


if __name__ == "__main__":
    place = Path(os.environ["STUB"])
    known = json.loads((place / "state.json").read_text())
    said = getattr(Commands(known, place), Path(sys.argv[0]).name)(*sys.argv[1:])
    (place / "state.json").write_text(json.dumps(known))
    sys.stdout.write(said)
