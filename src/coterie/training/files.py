"""The files of a result. `result.json` is written last and holds the checksums of all files, so a folder is complete or
refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from coterie.disk import digest, file_digest, said, write_text, writing
from coterie.errors import ConfigError
from coterie.training import checkpoint

FILES = ("result.json", "history.parquet", "evaluation.parquet", "models.safetensors")
_ABOUT, _HISTORY, _EVALUATION, _MODELS = FILES
_NEEDED = {"clients": list, "clusters": list, "metrics": list, "rounds": int, "seed": int}


def save(
    folder: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor], history: pd.DataFrame, scores: pd.DataFrame
) -> Path:
    (folder / _ABOUT).unlink(missing_ok=True)
    checkpoint.write(folder / _MODELS, tensors, {})
    with writing(folder / _HISTORY) as partial:
        history.to_parquet(partial)
    with writing(folder / _EVALUATION) as partial:
        scores.reset_index(drop=True).to_parquet(partial)
    plain = json.loads(json.dumps(about, default=str))  # as it will be read
    plain["files"] = {name: file_digest(folder / name) for name in FILES[1:]}
    write_text(folder / _ABOUT, json.dumps(plain | {"checksum": _checksum(plain)}, indent=1))
    return folder


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], pd.DataFrame, pd.DataFrame]:
    """(about, tensors, history, scores) of a saved result; a damaged one is refused."""
    missing = [name for name in FILES if not (folder / name).is_file()]  # reading a pipe would wait for ever
    if missing:
        raise ConfigError(
            f"{folder} holds no finished result (missing {', '.join(missing)}). If the run was interrupted, "
            "continue it with resume."
        )
    about = _about(folder)
    for name, kept in about.pop("files").items():
        if name not in FILES or _read(folder / name, file_digest) != kept:
            raise _damaged(folder / name, "its checksum is wrong")
    tensors, _ = checkpoint.read(folder / _MODELS)
    history, scores = (_read(folder / name, pd.read_parquet) for name in (_HISTORY, _EVALUATION))
    n = len(about["clients"])
    sizes = (len(about["clusters"]), len(scores), len(tensors.get("model_of", ())))
    metrics = all(isinstance(m, str) and m in scores for m in about["metrics"])
    if sizes != (n, n, n) or about["rounds"] != len(history) or not metrics or not _models_fit(tensors):
        raise _damaged(folder / _ABOUT, "it does not fit the other files")
    return about, tensors, history, scores


def _models_fit(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every client's model is there."""
    which = tensors["model_of"]
    models = [t for name, t in tensors.items() if name.startswith("model/")]
    good = which.dtype == torch.int64 and which.dim() == 1 and all(t.dim() > 0 for t in models)
    return good and all(bool(((which >= 0) & (which < len(t))).all()) for t in models)


def _about(folder: Path) -> dict[str, Any]:
    about = _read(folder / _ABOUT, lambda path: json.loads(path.read_text("utf-8")))
    if not isinstance(about, dict) or about.pop("checksum", None) != _checksum(about):
        raise _damaged(folder / _ABOUT, "its checksum is wrong")
    for name, kind in (_NEEDED | {"files": dict}).items():
        if not isinstance(about.get(name), kind):
            raise _damaged(folder / _ABOUT, f"it lacks {name!r}")
    return about


def _checksum(about: Mapping[str, Any]) -> str:
    return digest([json.dumps(about, sort_keys=True)])


def _read(path: Path, reader: Any) -> Any:
    try:
        return reader(path)
    except Exception as error:
        raise _damaged(path, said(error)) from None


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The file {path} is damaged: {reason}. Take it from a copy, or make the result again with",
        python="fit (resume=True continues from the last checkpoint).",
        cli=f"`coterie resume {path.parent}`.",
    )
