"""One way to write: whole or not at all, one run at a time, and nothing that is not ours is ever destroyed."""

from gpuplanner.files.folder import held_directory, replaced_directory, spare_room
from gpuplanner.files.leftovers import kept_aside
from gpuplanner.files.lock import sole_writer
from gpuplanner.files.manifest import MANIFEST, Mark, is_intact
from gpuplanner.files.ours import DATASET_FORMAT, allow_overwriting, overwriting, remove_ours
from gpuplanner.files.place import require_file
from gpuplanner.files.single import write_atomically
from gpuplanner.files.text import read_text, read_yaml, sha256, sha256_of_all, to_json, to_yaml

__all__ = [
    "DATASET_FORMAT",
    "MANIFEST",
    "Mark",
    "allow_overwriting",
    "held_directory",
    "is_intact",
    "kept_aside",
    "overwriting",
    "read_text",
    "read_yaml",
    "remove_ours",
    "replaced_directory",
    "require_file",
    "sha256",
    "sha256_of_all",
    "sole_writer",
    "spare_room",
    "to_json",
    "to_yaml",
    "write_atomically",
]
