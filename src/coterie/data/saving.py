"""A federation on disk: plain .npy arrays, mapped when they are read, and a JSON description with their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from coterie.base.disk import SealedFolder, said, writing
from coterie.data.checks import checked_clusters, checked_ids, plain
from coterie.data.columns import ColumnReport
from coterie.data.provenance import FACTS, checked_facts
from coterie.errors import CoterieError, DataError

if TYPE_CHECKING:
    from coterie.data.federation import Federation

_ABOUT = "federation.json"
_TABLE = "preprocessing.parquet"
_BLOCK_BYTES = 16 << 20  # of features written at a time
_FEATURES = (np.uint8, np.float32, np.float64, np.int16, np.int32, np.int64)


def _sealed(folder: Path) -> SealedFolder:
    return SealedFolder(folder, _ABOUT, DataError, "save the federation again.")


def save(federation: Federation, folder: Path) -> Path:
    sealed = _sealed(folder)
    sealed.unseal()
    _save_features(federation, folder)
    arrays = {"y": federation.y.numpy(), "offsets": federation.offsets, "n_train": federation.n_train}
    if federation.clusters is not None:
        arrays["clusters"] = federation.clusters
    if federation.n_valid.any():
        arrays["n_valid"] = federation.n_valid
    if federation.weights is not None:
        arrays["weights"] = federation.weights.numpy()
    arrays |= {f"beside.{name}": np.asarray(values) for name, values in federation.beside.items()}
    for name, values in arrays.items():
        with writing(folder / f"{name}.npy") as partial, partial.open("wb") as file:
            np.save(file, values)
    files = [f"{name}.npy" for name in ("x", *arrays)]
    if federation.preprocessing is not None:
        with writing(folder / _TABLE) as partial:
            federation.preprocessing.to_parquet(partial)
        files.append(_TABLE)
    about: dict[str, Any] = {
        "kind": federation.kind,
        "judged_as": federation.judged_as,
        "classes": federation.classes,
        "columns": federation.columns,
        "clients": federation.clients.tolist(),
        "declared": sorted(federation.declared),
        "filtered": federation.filtered,
        "encoded": federation.encoded,
        "labels": dict(federation.labels),
    }
    about["notes"] = None if federation.notes is None else federation.notes.to_json()
    sealed.seal(about, files, plain)
    return folder


def _save_features(federation: Federation, folder: Path) -> None:
    """A block of rows at a time: they may lie on disk in another order."""
    shape = (len(federation.y), *federation.x.shape[1:])
    block = max(_BLOCK_BYTES // max(federation.n_features * federation.x.element_size(), 1), 1)
    about = {"descr": np.lib.format.dtype_to_descr(federation.x.numpy().dtype), "fortran_order": False, "shape": shape}
    with writing(folder / "x.npy") as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        for start in range(0, len(federation.y), block):
            file.write(federation.features(slice(start, start + block)).contiguous().numpy().tobytes())


def load(folder: Path, *, mapped: bool) -> Federation:
    if not (folder / _ABOUT).is_file():
        raise DataError(f"{folder} holds no saved federation (no federation.json). Write one with Federation.save.")
    sealed = _sealed(folder)
    about = sealed.about()
    try:
        return _assembled(sealed, about, mapped)
    except CoterieError:
        raise
    except Exception as error:  # a description of other things, under a right checksum
        raise sealed.damaged(_ABOUT, f"{type(error).__name__}: {said(error)}") from None


def _assembled(sealed: SealedFolder, about: dict[str, Any], mapped: bool) -> Federation:
    from coterie.data.federation import Federation

    files: dict[str, str] = about["files"]
    for name, kept in files.items():
        if name != "x.npy" or not mapped:
            sealed.check(name, kept)
    # mode "c" (copy on write): tensors over the map may be made without a warning, the file can never change
    x, y = (_array(sealed, f"{name}.npy", "c" if mapped else None) for name in ("x", "y"))
    offsets, n_train = (_array(sealed, f"{name}.npy") for name in ("offsets", "n_train"))
    ids = checked_ids(about["clients"])
    n_valid = _array(sealed, "n_valid.npy") if "n_valid.npy" in files else np.zeros_like(n_train)
    weights = _array(sealed, "weights.npy") if "weights.npy" in files else None
    _check(sealed, x, y, offsets, n_train, len(ids))
    if n_valid.shape != n_train.shape or (n_train + n_valid > np.diff(offsets)).any() or (n_valid < 0).any():
        raise sealed.damaged("n_valid.npy", "a client has more rows in its parts than rows")
    if weights is not None and weights.shape != (len(y),):
        raise sealed.damaged("weights.npy", f"it has shape {weights.shape} for {len(y)} rows")
    clusters = _array(sealed, "clusters.npy") if "clusters.npy" in files else None
    return Federation(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        offsets=offsets,
        n_train=n_train,
        clients=ids,
        kind=about["kind"],
        judged_as=str(about.get("judged_as", "")),
        classes=None if about["classes"] is None else tuple(about["classes"]),
        clusters=None if clusters is None else checked_clusters(clusters, ids),
        columns=None if about["columns"] is None else tuple(about["columns"]),
        preprocessing=sealed.read(_TABLE, pd.read_parquet) if _TABLE in files else None,
        notes=ColumnReport.from_json(about["notes"]) if about["notes"] else None,
        n_valid=n_valid,
        declared=checked_facts(fact for fact in about.get("declared", ()) if fact in FACTS),
        filtered=bool(about.get("filtered", True)),
        encoded=bool(about.get("encoded", True)),
        labels={str(k): str(v) for k, v in about.get("labels", {}).items()},
        mapped=mapped,
        weights=None if weights is None else torch.from_numpy(weights),
        beside={f.split(".")[1]: _array(sealed, f) for f in files if f.startswith("beside.")},
    )


def _array(sealed: SealedFolder, name: str, mode: Any = None) -> Any:
    return sealed.read(name, lambda path: np.load(path, mmap_mode=mode, allow_pickle=False))


def _check(sealed: SealedFolder, x: Any, y: Any, offsets: Any, n_train: Any, clients: int) -> None:
    """The arrays fit one another; x, which may be mapped, only by its type and shape."""
    rows = len(y)
    if x.dtype not in _FEATURES or x.ndim < 2 or len(x) != rows or not x.flags.c_contiguous:
        raise sealed.damaged("x.npy", f"it holds {x.dtype} of shape {x.shape} for {rows} rows")
    if y.dtype not in (np.int64, np.float32, np.float64) or y.ndim < 1:
        raise sealed.damaged("y.npy", f"it holds {y.dtype} of shape {y.shape}")
    whole = offsets.dtype == n_train.dtype == np.int64 and offsets.shape == (clients + 1,)
    sizes = np.diff(offsets)
    if not whole or n_train.shape != (clients,) or offsets[0] != 0 or offsets[-1] != rows or (n_train < 1).any():
        raise sealed.damaged("offsets.npy", f"it does not fit {clients} clients with {rows} rows")
    if (n_train > sizes).any():
        raise sealed.damaged("n_train.npy", "a client has more training rows than rows")
