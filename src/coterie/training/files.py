"""The files of a result. `result.json` is written last and holds the checksums of all files, so a folder is complete or
refused. A private run's receipt is one of them: a receipt that was put beside another result is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from coterie.base.disk import SealedFolder, writing
from coterie.errors import ConfigError
from coterie.training import checkpoint

FILES = ("result.json", "history.parquet", "evaluation.parquet", "models.safetensors")
RECEIPT = "receipt.json"
_ABOUT, _HISTORY, _EVALUATION, _MODELS = FILES
_NEEDED = {"clients": list, "clusters": list, "metrics": list, "rounds": int, "seed": int, "files": dict}


def _sealed(folder: Path) -> SealedFolder:
    python = "make the result again with fit (resume=True continues from the last checkpoint)."
    return SealedFolder(folder, _ABOUT, ConfigError, python, f"make the result again with `coterie resume {folder}`.")


def save(
    folder: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor], history: pd.DataFrame, scores: pd.DataFrame
) -> Path:
    sealed = _sealed(folder)
    sealed.unseal()
    checkpoint.write(folder / _MODELS, tensors, {})
    with writing(folder / _HISTORY) as partial:
        history.to_parquet(partial)
    with writing(folder / _EVALUATION) as partial:
        scores.reset_index(drop=True).to_parquet(partial)
    sealed.seal(about, [*FILES[1:], *([RECEIPT] if (folder / RECEIPT).exists() else [])])
    return folder


def check_receipt(folder: Path) -> None:
    """Refuse a receipt that was not written with the result in the folder."""
    sealed = _sealed(folder)
    kept = sealed.about().get("files")
    if not isinstance(kept, dict):
        raise sealed.damaged(_ABOUT, "it lacks 'files'")
    if RECEIPT in kept:
        sealed.check(RECEIPT, kept[RECEIPT])
    elif (folder / RECEIPT).exists():
        raise ConfigError(f"{folder / RECEIPT} is not of the result beside it, which has none. Take it away.")


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], pd.DataFrame, pd.DataFrame]:
    """(about, tensors, history, scores) of a saved result; a damaged one is refused."""
    missing = [name for name in FILES if not (folder / name).is_file()]  # reading a pipe would wait for ever
    if missing:
        raise ConfigError(
            f"{folder} holds no finished result (missing {', '.join(missing)}). If the run was interrupted, "
            "continue it with resume."
        )
    sealed = _sealed(folder)
    about = sealed.about()
    lacks = [name for name, kind in _NEEDED.items() if not isinstance(about.get(name), kind)]
    if lacks:
        raise sealed.damaged(_ABOUT, f"it lacks {lacks[0]!r}")
    kept = about.pop("files")
    for name in FILES[1:]:
        sealed.check(name, kept.get(name))
    tensors, _ = checkpoint.read(folder / _MODELS)
    history, scores = (sealed.read(name, pd.read_parquet) for name in (_HISTORY, _EVALUATION))
    n = len(about["clients"])
    sizes = (len(about["clusters"]), len(scores), len(tensors.get("model_of", ())))
    metrics = all(isinstance(m, str) and m in scores for m in about["metrics"])
    if sizes != (n, n, n) or about["rounds"] != len(history) or not metrics or not _models_fit(tensors):
        raise sealed.damaged(_ABOUT, "it does not fit the other files")
    return about, tensors, history, scores


def _models_fit(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every client's model is there."""
    which = tensors["model_of"]
    models = [t for name, t in tensors.items() if name.startswith("model/")]
    good = which.dtype == torch.int64 and which.dim() == 1 and all(t.dim() > 0 for t in models)
    return good and all(bool(((which >= 0) & (which < len(t))).all()) for t in models)
