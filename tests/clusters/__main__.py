"""Write the files of all generated clusters and what is right for each: ``python -m tests.clusters OUTDIR``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.clusters import cut_clusters, planted, truth
from tests.clusters.cluster import Cluster
from tests.clusters.growth import KINDS, series

SEEDS, WEEKS = 60, 104


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--only", nargs="*", help="names of planted clusters")
    parser.add_argument("--no-search", action="store_true", help="files and counts alone")
    given = parser.parse_args()
    found = {}
    for name in given.only or planted.names():
        one = planted.planted(name)
        found[name] = {"family": one.family, **_written(one.cluster, given.outdir)}
        if not given.no_search:
            found[name] |= asdict(truth.truth(name))
            sys.stdout.write(truth.line(name) + "\n")
    for cluster in [] if given.only else cut_clusters.all_cut():
        waits = cluster.waits()
        found[cluster.name] = {"family": "cut_clusters", **_written(cluster, given.outdir), "waits": waits}
    _write(given.outdir / "truth.json", json.dumps(found, indent=1, default=str) + "\n")
    grown = {kind: [series(kind, seed, WEEKS) for seed in range(SEEDS)] for kind in KINDS}
    _write(given.outdir / "growth.json", json.dumps(grown) + "\n")


def _written(cluster: Cluster, out: Path) -> dict[str, object]:
    files = {}
    for name, text in cluster.files().items():
        path = out / cluster.name / name
        _write(path, text)
        files[name] = str(path.relative_to(out))
    facts = {"source": cluster.source, "board": cluster.board, "tz": "UTC", "quotas": dict(cluster.quotas)}
    return {**facts, "files": files, "planted": cluster.planted()}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
