"""A run as a TOML file: [data], [task], [algorithm], [privacy], [secure], [run]. Unknown keys are errors
that say what was meant.

    [data]
    name = "digits"              # a built-in data set and its loader's options; or path, client and target
    clusters = 4

    [algorithm]
    name = "finetuned"           # a registry name and the fields of its dataclass
    [algorithm.base]
    name = "fedavg"
    [algorithm.base.local]
    lr = 0.1
    batch_size = "none"          # TOML has no null: "none" stands for it where a setting may be absent

Algorithms are built from their dataclass fields and type hints (`build.py`), data sets and models from their signatures,
so new ones work without a change here.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coterie import datasets
from coterie.base.disk import locked, unlinked, write_text
from coterie.base.text import suggest
from coterie.cli.build import arguments, build, checked_sections, convert, require_known
from coterie.cli.own_algorithms import algorithm_class
from coterie.data.federation import Federation
from coterie.data.provenance import checked_facts
from coterie.data.tables import federation_from_frame, read_table
from coterie.engines import ENGINES
from coterie.engines.secure import additive
from coterie.errors import ConfigError, DataError, TaskError
from coterie.exchange.channels import Channel
from coterie.learning.metrics import LOSSES, METRICS
from coterie.learning.models import MODELS
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import public
from coterie.secure.settings import Secure
from coterie.training import checkpoint
from coterie.training.cohorts import Sampler
from coterie.training.result import FILES as RESULT_FILES
from coterie.training.result import Result
from coterie.training.run import fit

COPY = "config.toml"
_ORIGIN = "origin.txt"
SECTIONS = ("data", "task", "algorithm", "channels", "privacy", "secure", "run")
_READING: tuple[str, ...] = ("delimiter", "decimal", "encoding")  # of [data] with a path
_EITHER = "[data] needs either name (a built-in data set) or path (a table). Give one of the two."
_KNOWN_SIZES = ("n_in", "n_out", "channels", "side")  # follow from the data


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder, not a config file. Name a TOML file, or continue its run: `coterie resume {path}`."
        )
    if not path.is_file():
        near = [p.name for p in sorted(path.parent.glob("*.toml"))] if path.parent.is_dir() else []
        hint = suggest(path.name, near, "Here") if near else "Check the path."
        raise ConfigError(f"There is no config file {path}. {hint}")
    if path.suffix in (".csv", ".parquet", ".xlsx"):
        raise ConfigError(f"{path} is a table, not a config file. Compare its clients with `coterie compare {path}`.")
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"A config file must be UTF-8; {path} is not. Save it again with that encoding.") from None
    except RecursionError:
        raise ConfigError(f"{path} nests lists or tables too deeply. Write them with fewer brackets.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Check that line.") from None


def loader(
    data: Mapping[str, Any], folder: Path, seed: int | None = None, *, private: bool = False
) -> Callable[[], Any]:
    """A function that reads the data of [data]; `seed` replaces that of the split, if there is one.

    In a `private` run the named classes, categories and kind are declared public, and so are the facts of the key `public`:
    a configuration is written without reading anybody's rows."""
    options = dict(data)
    told = options.pop("public", [])
    if not isinstance(told, list) or not all(isinstance(fact, str) for fact in told):
        raise ConfigError(
            f'data.public must be a list of facts, such as ["clients"]; got {told!r}. Put it in brackets.'
        )
    facts, load = (
        checked_facts(told),
        _named(options, seed) if "name" in options else _table(options, folder, seed, private),
    )

    def declaring() -> Any:
        data = load()
        federation = data[0] if isinstance(data, tuple) else data
        return federation.declare_public(*facts) if isinstance(federation, Federation) else data

    return declaring if facts else load


def _named(options: dict[str, Any], seed: int | None) -> Callable[[], Any]:
    """A built-in data set."""
    if "path" in options:
        raise ConfigError(_EITHER)
    name = options.pop("name")
    known = [n for n in datasets.DATASETS if callable(getattr(datasets, n, None))]
    require_known(name, known, "data.name")
    make = getattr(datasets, str(name))
    given = arguments(make, options, "data")
    if seed is not None and "seed" in inspect.signature(make).parameters:
        given["seed"] = seed
    return lambda: make(**given)


def _table(options: dict[str, Any], folder: Path, seed: int | None, private: bool) -> Callable[[], Any]:
    """A table on disk."""
    if "path" not in options:
        raise ConfigError(_EITHER)
    path = options.pop("path")
    if not isinstance(path, str):
        raise ConfigError(f"data.path must be a text; got {path!r}. Put it in quotes.")
    for key in ("client", "target"):
        if key not in options:
            raise ConfigError(f"data.{key} is missing. Name the table's {key} column.")
    told = {k: options.pop(k) for k in _READING if k in options}
    reading = arguments(read_table, told, "data", skip=("client", "text"), known=("path",))
    given = arguments(federation_from_frame, options, "data", skip=("frame",), also=("path", *_READING))
    if private:
        given |= {k: public(given[k]) for k in ("classes", "categories", "kind") if given.get(k) is not None}
        reading["text"] = "categories" in given
    if seed is not None:
        given["seed"] = seed
    return lambda: federation_from_frame(read_table(folder / path, client=given["client"], **reading), **given)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RunSection(Section):
    rounds: int = Field(10, ge=1, le=10**9)
    seed: int = Field(0, ge=0)
    cohort: int | float | dict[str, Any] | None = None
    engine: str = "local"
    evaluate_every: int = Field(0, ge=0)
    evaluate_clients: int | None = Field(None, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    out: str = Field("runs/coterie", min_length=1)


class Named(BaseModel):
    """A name from a registry; the other keys are checked against what the name stands for."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TaskSection(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    model: str = "auto"
    loss: str | None = None
    metric: str | list[str] | None = None


class Config(Section):
    """A checked run; `federation()`, `task()` and `algorithm()` make its parts."""

    data: dict[str, Any]
    task_: TaskSection = Field(default_factory=TaskSection, alias="task")
    algorithm_: Named = Field(alias="algorithm")
    channels_: list[dict[str, Any]] = Field(default_factory=list, alias="channels")
    privacy_: dict[str, Any] | None = Field(default=None, alias="privacy")
    secure_: dict[str, Any] | None = Field(default=None, alias="secure")
    run: RunSection = Field(default_factory=RunSection)
    folder: Path = Field(Path("."), exclude=True)
    """The folder of the file; relative data paths start here."""

    # ---- reading -----------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, folder: Path | None = None) -> Config:
        path = Path(path)
        return cls.parse(read_toml(path), path.parent if folder is None else folder)

    @classmethod
    def parse(cls, table: Mapping[str, Any], folder: Path = Path(".")) -> Config:
        config = checked_sections(table, cls, SECTIONS, ("data", "algorithm"), folder=folder)
        config.check()
        return config

    def check(self) -> None:
        """Check everything that can be checked before data are read."""
        self.algorithm()
        self.channels()
        self.privacy()
        self.secure()
        self.cohort()
        self._loader()
        require_known(self.run.engine, ENGINES, "run.engine")
        metric = self.task_.metric
        for name in [metric] if isinstance(metric, str) else metric or []:
            require_known(name, METRICS, "task.metric")
        if self.task_.loss is not None:
            require_known(self.task_.loss, LOSSES, "task.loss")
        if self.task_.model != "auto":
            require_known(self.task_.model, ["auto", *MODELS], "task.model")
            self._sizes()
        elif self.task_.model_extra:
            key = next(iter(self.task_.model_extra))
            raise ConfigError(
                f"Unknown key task.{key}. {suggest(key, ('model', 'loss', 'metric'))} Sizes need a named model."
            )

    # ---- parts -------------------------------------------------------------------------------------------------------

    def algorithm(self) -> Any:
        return build(algorithm_class(str(self.algorithm_.name), "algorithm.name"), self.algorithm_.options, "algorithm")

    def channels(self) -> list[Channel]:
        """[[channels]]: what happens to messages on the way, in this order."""
        return [convert(Channel, table, f"channels[{i}]") for i, table in enumerate(self.channels_)]

    def cohort(self) -> Sampler | int | float | None:
        """A number of clients, a probability, or a named sampler."""
        given = self.run.cohort
        sampler: Sampler | int | float | None = (
            convert(Sampler, given, "run.cohort") if isinstance(given, dict) else given
        )
        return sampler

    def privacy(self) -> Privacy | None:
        """[privacy]: a budget, with the fields of `coterie.Privacy`."""
        return None if self.privacy_ is None else build(Privacy, self.privacy_, "privacy")

    def secure(self) -> Secure | None:
        """[secure]: sums that their server cannot take apart, with the fields of `Secure`."""
        return None if self.secure_ is None else build(Secure, self.secure_, "secure")

    def engine(self) -> Any:
        """The engine of a run in this process; with [secure] it rehearses a deployment."""
        secure = self.secure()
        if secure is not None and self.run.engine != "local":
            raise ConfigError(
                f"Secure sums in one process need the engine 'local'; got {self.run.engine!r}. Leave out run.engine."
            )
        if secure is None:
            return self.run.engine
        from coterie.flower.rehearsal import RehearsalEngine

        return RehearsalEngine(secure)

    def federation(self) -> Federation:
        data = self._loader()()
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Federation):
            data = data[0]  # generators also return the truth
        if not isinstance(data, Federation):
            raise ConfigError(f"data.name {self.data['name']!r} gives no clients to train on. Choose another data set.")
        return data

    def _loader(self) -> Callable[[], Any]:
        return loader(self.data, self.folder, private=self.privacy_ is not None)

    def task(self, federation: Federation) -> Task:
        default = Task.default(federation)
        model = default.model
        if self.task_.model != "auto":
            factory = MODELS[self.task_.model]
            wanted = inspect.signature(factory).parameters
            shape = tuple(federation.x.shape[1:])
            from_data = {"n_in": federation.n_features, "n_out": federation.n_outputs}
            if len(shape) == 3:
                from_data |= {"channels": shape[0], "side": shape[-1]}
            model = factory(**({k: v for k, v in from_data.items() if k in wanted} | self._sizes()))
        metric = self.task_.metric
        return Task(
            model,
            self.task_.loss or default.loss,
            default.metric if metric is None else metric if isinstance(metric, str) else tuple(metric),
        )

    def _sizes(self) -> dict[str, Any]:
        factory = MODELS[self.task_.model]
        given = dict(self.task_.model_extra or {})
        return arguments(factory, given, "task", also=("model", "loss", "metric"), known=_KNOWN_SIZES)

    def fit(self, *, out: Path, resume: bool = False, overwrite: bool = False) -> Result:
        federation = self.federation()
        algorithm, engine = self.algorithm(), self.engine()
        if self.secure() is not None:
            algorithm = additive(algorithm)
        return fit(
            algorithm,
            federation,
            self.task(federation),
            rounds=self.run.rounds,
            seed=self.run.seed,
            cohort=self.cohort(),
            channels=self.channels(),
            engine=engine,
            evaluate_every=self.run.evaluate_every,
            evaluate_clients=self.run.evaluate_clients,
            checkpoint_every=self.run.checkpoint_every,
            out=out,
            resume=resume,
            overwrite=overwrite,
            privacy=self.privacy(),
        )


# ---- run and resume --------------------------------------------------------------------------------------------------


def start(path: Path, *, out: Path | None = None, overwrite: bool = False) -> Result:
    """Run a config; its folder keeps a copy of the file, so that `proceed` needs nothing else."""
    config = Config.load(path)
    folder = out if out is not None else Path(config.run.out)
    if (folder / checkpoint.FILE).exists() and not overwrite:
        raise ConfigError(
            f"{folder} already holds a run. Continue it with `coterie resume {folder}`, replace it with --overwrite, "
            "or name another folder with --out."
        )
    text = path.read_text("utf-8")
    copy = folder / COPY
    if copy.is_file() and not (folder / _ORIGIN).exists() and copy.resolve() != path.resolve():
        raise ConfigError(
            f"The folder of a run keeps its file as {COPY}; {copy} is another one. Name another folder with --out."
        )
    with locked(folder, private=config.privacy() is not None):  # before any file of another process's run is changed
        if overwrite:  # nothing of the old run may pass for the new one
            for name in (checkpoint.FILE, *RESULT_FILES):
                (folder / name).unlink(missing_ok=True)
        new = [file for file in (copy, folder / _ORIGIN) if not file.exists()]
        write_text(copy, text if text.endswith("\n") else text + "\n")
        write_text(folder / _ORIGIN, f"{config.folder.resolve()}\n")
        try:
            return config.fit(out=folder, overwrite=overwrite)
        except (ConfigError, DataError, TaskError):
            if not (folder / checkpoint.FILE).exists():  # refused: there is no run to resume
                for file in new:
                    file.unlink(missing_ok=True)
            raise


def proceed(folder: Path) -> Result:
    """Continue the run in a folder; a run that ended before its first checkpoint starts again."""
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}. Name the folder of a run.")
    if not (folder / COPY).is_file():
        raise ConfigError(f"{folder} holds no run to resume (no {COPY}). Start one with `coterie run config.toml`.")
    origin = unlinked(folder / _ORIGIN)
    try:
        home = Path(origin.read_text("utf-8").strip()) if origin.is_file() else folder
    except ValueError:
        raise ConfigError(
            f"{origin} names the folder of the run's file in UTF-8, and it is damaged. Write it again."
        ) from None
    config = Config.load(folder / COPY, home)
    return config.fit(out=folder, resume=(folder / checkpoint.FILE).exists())
