"""A warm worker: runs the apps of SuperNodes and SuperLinks started with `--isolation process`, in a fork per task.

Flower starts a new interpreter for every message, which imports torch each time. Here torch is imported once, and
every task gets a fork of that process. Only this file uses modules that are not public in Flower, so the extra bounds the
version of flwr.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Queue
from typing import Any, NoReturn

import flwr.supercore.superexec.run_superexec as superexec
import flwr.supernode.runtime.run_clientapp as runtime
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.superlink.runtime.run_serverapp import run_serverapp
from flwr.supernode.runtime.run_clientapp import run_clientapp

import coterie.flower.apps
import coterie.training.run  # imported before the first fork
from coterie.base.disk import said
from coterie.flower.job import Job
from coterie.flower.roles.daemons import ShortPolls

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"


@dataclass
class ForkExecutor(SubprocessExecutor):
    """Starts a task in a fork of this process. own: the only app that runs here, instead of those that are sent; then tasks
    of every other kind are left alone."""

    own: ClientApp | None = None
    polls: ShortPolls = field(default_factory=lambda: ShortPolls(busy=0.05, idle=1.0))

    def get_eligible_capacity(self, supported_task_types: set[TaskType], **how: Any) -> tuple[set[TaskType], set[str]]:
        kinds, hashes = super().get_eligible_capacity(supported_task_types, **how)
        return (kinds if self.own is None else kinds & {TaskType.CLIENT_APP}), hashes

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        self.polls.work()
        if self.own is not None and spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed("This site runs its own app, and nothing that is sent.")
        if spec.task_type not in (TaskType.CLIENT_APP, TaskType.SERVER_APP):
            return super().launch(spec)
        sys.stdout.flush()
        if os.fork() == 0:
            _child(spec, self.own)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap the tasks that ended."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _child(spec: ExecutionSpec, own: ClientApp | None) -> None:
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        certificates = validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure)
        how = (spec.token, spec.insecure, certificates, spec.parent_pid, False)
        if spec.task_type == TaskType.CLIENT_APP:
            if own is not None:  # what the operator sent is neither unpacked nor imported
                runtime.install_from_fab = lambda *_, **__: None  # type: ignore[assignment]
                runtime.get_load_client_app_fn = lambda **_: lambda *_: own
            run_clientapp(spec.runtime_api_address, *how)
        else:
            said: Queue[str | None] = Queue()
            mirror_output_to_queue(said)
            run_serverapp(spec.runtime_api_address, said, *how)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def work(
    addresses: Sequence[str],
    root_certificates: str | None = None,
    secret: bytes | None = None,
    own: Callable[[], Job] | None = None,
) -> NoReturn:
    """Take tasks from the Runtime APIs at these addresses until stopped, one process each. The certificates are for those
    that begin with https://; `secret` is the text that they demand from workers. own: the run that this site has approved;
    then its installed coterie works on it, whatever code a run brings."""
    os.environ.setdefault(POLL, "0.05")
    app = None if own is None else coterie.flower.apps.client_app(own)
    executor = ForkExecutor(app)
    superexec.get_executor = lambda *_, **__: executor  # type: ignore[assignment]
    superexec.time = executor.polls  # type: ignore[assignment]
    children: list[int] = []
    for address in addresses[1:]:
        child = os.fork()
        if child == 0:
            children = []
            addresses = [address]
            break
        children.append(child)
    address, code = addresses[0], 2
    secure = address.startswith("https://")
    try:
        superexec.run_superexec(
            address.removeprefix("https://"), not secure, root_certificates if secure else None, secret
        )
    except SystemExit as end:  # how Flower ends on request, or when it refuses the secret
        code = end.code if isinstance(end.code, int) else 1
        print(f"The worker for {address} ends. If nobody ended it, its --secret was refused.", file=sys.stderr)
    except Exception as error:
        print(
            f"The worker for {address} cannot continue: {said(error)}. A SuperLink with TLS is https://HOST:PORT, and "
            "--root-certificates names its authority; anything else is HOST:PORT.",
            file=sys.stderr,
        )
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        sys.stderr.flush()
        os._exit(code)  # what Flower left running would keep the process for a minute
