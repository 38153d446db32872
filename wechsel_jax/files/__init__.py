"""What is on disk: files that appear whole or not at all (`whole`), may one write here (`refusals`), JSON, .npz, manifests."""

from wechsel_jax.files.manifests import RECORD, damage, file_hash, seal, sync_directory
from wechsel_jax.files.refusals import foreign, refuse_directory, refuse_file, refuse_workdir, require_directory, require_file
from wechsel_jax.files.whole import (
    FULL,
    copy_tree,
    held,
    new_directory,
    new_file,
    remove_leftovers,
    remove_unfinished,
    temporary_directory,
)

__all__ = [
    "FULL",
    "RECORD",
    "copy_tree",
    "damage",
    "file_hash",
    "foreign",
    "held",
    "new_directory",
    "new_file",
    "refuse_directory",
    "refuse_file",
    "refuse_workdir",
    "remove_leftovers",
    "remove_unfinished",
    "require_directory",
    "require_file",
    "seal",
    "sync_directory",
    "temporary_directory",
]
