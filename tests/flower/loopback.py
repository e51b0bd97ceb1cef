"""A SuperLink and SuperNodes on this machine, as subprocesses, with TLS and authentication; offline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def shell(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=120)


def certificates(folder: Path) -> None:
    """A certificate authority of our own and a certificate for loopback."""
    folder.mkdir(parents=True)
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes")
    shell(*new, "-x509", "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)
    shell(*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr", cwd=folder)
    (folder / "names.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names.txt")
    shell("openssl", "x509", "-req", "-in", "server.csr", *signed, "-out", "server.crt", cwd=folder)


class Deployment:
    """Everything that runs, by name; `stop` ends it all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tls, self.home = folder, folder / "tls", folder / "home"
        certificates(self.tls)
        self.port = free_port()
        self.secret = folder / "secret"
        self.secret.write_text("known to the SuperLink and its worker alone")
        self.home.mkdir()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.tls / "ca.crt"}"\n'
        )
        self.env = os.environ | QUIET | {"FLWR_HOME": str(self.home)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(command, stdout=log, stderr=log, env=self.env | (env or {}), start_new_session=True)
        self.running[name] = made
        return made

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def superlink(self) -> None:
        self.start(
            "superlink", str(BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(self.tls / "ca.crt"), "--ssl-certfile", str(self.tls / "server.crt"),
            "--ssl-keyfile", str(self.tls / "server.key"), "--enable-supernode-auth",
            "--isolation", "process", "--superexec-auth-secret-file", str(self.secret),
        )  # fmt: skip
        self.wait(self._healthy, 240, "the SuperLink")

    def _healthy(self) -> bool:
        import ssl

        try:
            context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
            with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def key(self, name: str, *, register: bool = True) -> Path:
        shell("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(self.folder / name), cwd=self.folder)
        if register:
            self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), "lab", "--name", name)
        return self.folder / name

    def supernode(self, name: str, key: Path, port: int, /, **config: str | int) -> subprocess.Popen[bytes]:
        told = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        return self.start(
            name, str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1",
            "--port", str(port), "--root-certificates", str(self.tls / "ca.crt"), "--isolation", "process",
            "--auth-supernode-private-key", str(key), "--node-config", told, "--max-retries", "3",
        )  # fmt: skip

    def workers(self, ports: list[int], script: str = "faults.py") -> None:
        """Two processes that have torch loaded: the server's, and one forked for every site."""
        self.start(
            "worker", sys.executable, "-m", "coterie", "flower", "worker", f"https://127.0.0.1:{self.port}",
            "--root-certificates", str(self.tls / "ca.crt"), "--secret", str(self.secret),
        )  # fmt: skip
        there = [f"127.0.0.1:{port}" for port in ports]
        self.start("sites", sys.executable, str(Path(__file__).with_name(script)), *there)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments, "--format", "json"],
            env=self.env,
            capture_output=True,
            timeout=120,
            check=False,
        )
        text = done.stdout.decode()
        assert done.returncode == 0, text + done.stderr.decode()
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        return found

    def run(self, project: Path, **config: Any) -> str:
        told = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        return str(self.flwr("run", str(project), "lab", "--run-config", told)["run-id"])

    def status(self, run: str) -> str:
        found = self.flwr("list", "lab", "--run-id", run)["runs"][0]
        return str(found["status"])

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        os.killpg(self.running[name].pid, how)
        self.running.pop(name).wait()

    def wait(self, until: Any, seconds: float, what: str) -> None:
        began = time.monotonic()
        while not until():
            assert time.monotonic() - began < seconds, f"{what} did not come in {seconds} s"
            time.sleep(0.3)

    def stop(self) -> None:
        for name in list(self.running):
            try:
                self.kill(name)
            except ProcessLookupError:
                self.running.pop(name, None)
