"""The actors of an engine, and their repair.

A call goes to several actors at once. If an actor has died, another process takes its place: it gets the states that were
last committed, every call since then is repeated, and then the call that failed. All calls are functions of their
arguments, so the answers are those the dead actor would have sent. Every call names its data and settings, and a process
fetches those that it does not have yet.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

from coterie.base.cores import usable_cores
from coterie.engines.ray.shard import Failed, Shard
from coterie.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from coterie.engines.ray.states import ShardedStates

_TRIES = 3  # processes that may die in a row before the run ends
_PATIENCE = 180.0  # seconds until actors must have started
_HELLO = 10.0  # seconds for a cluster to take a call
_QUIET: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
_NAMES = count()
_STARTED: list[Any] = []  # Ray runs for this process alone
_POOLS: weakref.WeakValueDictionary[Any, Pool] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Call:
    """A method of `Shard` and its arguments."""

    method: str
    args: tuple[Any, ...]


def new_name(kind: str) -> str:
    """A name that is unique among everything sent to actors."""
    return f"{kind} {os.getpid()}.{next(_NAMES)}"


def pool(address: str | None, actors: int | None, device: str | None) -> Pool:
    """The actors of all engines with these settings: starting processes takes seconds, so they are shared."""
    key = (address, actors, device)
    found = _POOLS.get(key)
    if found is None or not found.alive:
        found = _POOLS[key] = Pool(address, actors, device)
    return found


class Pool:
    def __init__(self, address: str | None, actors: int | None, device: str | None) -> None:
        self.ray, own = connected(address)
        self.device, self._own = device, own
        self._gpu = device is not None and device.startswith("cuda")
        if self._gpu and not self.ray.cluster_resources().get("GPU"):
            raise ConfigError(f"The device {device!r} cannot be used here: the cluster has no GPU. Use device='cpu'.")
        self.actors = [self._start() for _ in range(actors or self._cores())]
        self.states: weakref.WeakSet[ShardedStates] = weakref.WeakSet()
        self.forgotten: deque[str] = deque()  # names of deleted objects, which actors may delete too
        self._await(self.actors)

    @property
    def alive(self) -> bool:
        return bool(self.actors) and bool(self.ray.is_initialized())

    def put(self, value: Any) -> tuple[Any, ...]:
        """A reference that can be sent to any number of actors."""
        return (self.ray.put(value),)

    def call(self, calls: Mapping[int, Call]) -> dict[int, Any]:
        """The answers of several actors, each to its own call."""
        if not self.actors:
            raise EngineError("The actors of this engine were ended by close(). Make a new RayEngine.")
        return {i: self.ray.get(refs[0]) for i, refs in self.refs(calls).items()}

    def refs(self, calls: Mapping[int, Call], n: int = 1) -> dict[int, list[Any]]:
        """References to the `n` parts of every answer, once the first part of all is there."""
        self._forget()
        pending = {i: self._send(i, call, n) for i, call in calls.items()}
        failed: Failed | None = None
        for i, call in calls.items():
            pending[i] = self._answered(i, call, n, pending[i])
            first = self.ray.get(pending[i][0])
            failed = failed or (first if isinstance(first, Failed) else None)
        if failed is not None:
            raise failed.error
        return pending

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _send(self, i: int, call: Call, n: int = 1) -> list[Any]:
        refs = self.actors[i].call.options(num_returns=n).remote(call.method, *call.args)
        return [refs] if n == 1 else list(refs)

    def _answered(self, i: int, call: Call, n: int, refs: list[Any]) -> list[Any]:
        """Wait for an answer; if the actor died, replace it and ask the new one."""
        for left in reversed(range(_TRIES)):
            try:
                self.ray.get(refs[0])
                return refs
            except self.ray.exceptions.RayActorError as error:
                if not left:
                    raise EngineError(
                        f"The actor with shard {i} of the clients died {_TRIES} times in a row: {_first_line(error)}. "
                        "Give it more memory or fewer clients (more actors), and resume from the last checkpoint."
                    ) from None
                refs = self._replaced(i, call, n)
            except self.ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
        return refs

    def _replaced(self, i: int, call: Call, n: int) -> list[Any]:
        """A new process with the states that were last committed; the calls since then, and this one, in their order."""
        self.actors[i] = self._start()
        self._await([self.actors[i]])  # if its machine is lost, there may be no core for it
        before = [self._send(i, again) for states in list(self.states) for again in states.since_the_start(i)]
        refs = self._send(i, call, n)
        for (ref,) in before:
            try:
                self.ray.get(ref)
            except self.ray.exceptions.RayActorError:
                break  # this one died too
            except (self.ray.exceptions.ObjectLostError, self.ray.exceptions.RayTaskError) as error:
                raise EngineError(
                    f"The states of shard {i} were lost with their machine: {_first_line(_cause(error))}. Resume from the "
                    "last checkpoint: fit(…, out=…, resume=True)."
                ) from None
        return refs

    def _start(self) -> Any:
        actor = self.ray.remote(Shard)
        # on this machine the user chooses the number of processes; on a shared cluster an actor takes a core
        options = {
            "num_cpus": 0 if self._own else 1,
            "num_gpus": 1 if self._gpu else 0,
            "scheduling_strategy": "SPREAD",
        }
        return actor.options(max_restarts=0, **options).remote(self.device)

    def _await(self, actors: list[Any]) -> None:
        try:
            ready = self.ray.get([actor.call.remote("ready") for actor in actors], timeout=_PATIENCE)
        except self.ray.exceptions.GetTimeoutError:
            free = self.ray.available_resources().get("CPU", 0)
            raise EngineError(
                f"Not all actors started within {_PATIENCE:.0f} seconds: {len(actors)} more are needed, and the cluster has "
                f"{free:g} free cores. Use fewer: RayEngine(actors=…)."
            ) from None
        except self.ray.exceptions.RayActorError as error:
            raise EngineError(
                f"An actor could not start: {_first_line(error)}. Every machine of the cluster needs the same Python, torch "
                "and coterie."
            ) from None
        for failed in (answer for answer in ready if isinstance(answer, Failed)):
            raise failed.error

    def _cores(self) -> int:
        return max(int(self.ray.cluster_resources().get("CPU", 1)), 1)

    def _forget(self) -> None:
        names = []
        while self.forgotten:
            names.append(self.forgotten.popleft())
        for actor in self.actors if names else ():
            actor.call.remote("forget", names)

    def close(self) -> None:
        """End the processes; their states are lost."""
        for actor in self.actors:
            with suppress(Exception):
                self.ray.kill(actor)
        self.actors = []


def connected(address: str | None) -> tuple[Any, bool]:
    """The module `ray`, connected, and whether Ray runs for this process alone.

    Without an address (and without RAY_ADDRESS) Ray starts on this machine and listens on loopback only."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # otherwise actors have a lower priority than all other processes
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("The Ray engine needs Ray, which is not installed. Run pip install 'coterie[ray]'.") from None
    address = address or os.environ.get("RAY_ADDRESS")
    if not ray.is_initialized():
        if address is None:
            _start_here(ray)
        else:
            _join(ray, address)
    elif address is not None and _STARTED:
        raise ConfigError(
            f"This program has started its own Ray and cannot also join the one at {address}. Make the engine with the "
            "address before any other Ray engine."
        )
    return ray, bool(_STARTED)


def _start_here(ray: Any) -> None:
    constants = import_module(
        "ray._private.ray_constants"
    )  # a variable of the environment comes too late after the import
    vars(constants)["ENABLE_RAY_CLUSTER"] = False  # what RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 says: loopback only
    try:
        ray.init("local", num_cpus=usable_cores(), include_dashboard=False, **_QUIET)
    except Exception as error:  # Ray waits for half a minute, and has no class for this
        raise EngineError(
            f"Ray could not start on this machine: {_first_line(error)}. Try again when it is less busy."
        ) from None
    _STARTED.append(ray)


def _join(ray: Any, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _HELLO).close()
        ray.init(address, **_QUIET)
        _STARTED.clear()
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"There is no Ray cluster at {address}: {_first_line(error)}. Start one with ray start --head, or leave the "
            "address out."
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cause(error: Any) -> BaseException:
    """The error in an actor, if coterie did not raise it on purpose."""
    cause: BaseException = error.cause if isinstance(getattr(error, "cause", None), BaseException) else error
    return cause
