"""Four hospitals, from empty folders to predictions, on this machine: `make consortium`, and a test.

    invite → approve → decide (a study) → train, with one site lost and back → predict at a site → what left

Everything is started by the two commands that a coordinator and a site would type. Every folder is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import coterie as ct
from coterie.flower.roles.processes import free_port

COTERIE = (sys.executable, "-m", "coterie")
DATA = 'client = "hospital"\ntarget = "target"\nkind = "classification"\none_class = "allow"\n'
TRAINING = '[algorithm]\nname = "ditto"\n[algorithm.local]\nsteps = 5\nlr = 0.1\n\n[run]\nrounds = {rounds}\n'


class Story:
    """The processes and folders of a consortium on loopback."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = print) -> None:
        self.folder, self.tell, self.began = folder, tell, time.monotonic()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        frame = ct.datasets.heart_frame()
        self.hospitals = sorted(frame["hospital"].unique())
        for name, part in frame.groupby("hospital"):
            part.to_csv(folder / f"{name}.csv", index=False)
        features = [c for c in frame if c not in ("hospital", "target")]
        self.data = f"[data]\nfeatures = {json.dumps(features)}\n{DATA}\n"

    def say(self, line: str) -> None:
        self.tell(f"{time.monotonic() - self.began:5.0f} s  {line}")

    def coterie(self, *command: str, code: int = 0) -> str:
        done = subprocess.run([*COTERIE, *command], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self.running[name] = subprocess.Popen([*COTERIE, *command], cwd=self.folder, stdout=log, stderr=log)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def wait(self, until: Callable[[], Any], what: str, seconds: float = 420) -> None:
        limit = time.monotonic() + seconds
        while not until():
            ended = [name for name, process in self.running.items() if process.poll()]
            assert not ended, f"{ended[0]} failed:\n{self.said(ended[0])}"
            assert time.monotonic() < limit, f"{what} did not come in {seconds} s:\n{self.said('hub')}"
            time.sleep(0.5)

    def ended(self, *names: str) -> None:
        """Wait for the end of these commands, which must be a good one."""
        for name in names:
            self.wait(lambda name=name: self.running[name].poll() is not None, f"the end of {name}")  # type: ignore[misc]
            assert self.running.pop(name).returncode == 0, self.said(name)

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(30)

    # ---- the story -------------------------------------------------------------------------------------------------------

    def invite(self, name: str, text: str, *, first: bool) -> None:
        (self.folder / f"{name}.toml").write_text(self.data + text)
        if first:
            where = ("--sites", ",".join(self.hospitals), "--address", f"127.0.0.1:{free_port()}")
            self.coterie("hub", "init", "hub", "--config", f"{name}.toml", *where)
        else:
            self.coterie("hub", "next", "hub", "--config", f"{name}.toml")
        digest = hashlib.sha256((self.folder / f"{name}.toml").read_bytes()).hexdigest()
        (self.folder / "approved.txt").write_text(f"{digest}  {name}.toml\n")
        self.say(f"the hub has an invitation to {name} for {', '.join(self.hospitals)}")

    def site(self, name: str, invited: bool = True) -> None:
        given = ("--invite", f"hub/invitations/{name}.json", "--approve", "approved.txt") if invited else ()
        self.start(name, "site", "start", f"at-{name}", "--table", f"{name}.csv", *given)

    def begin(self) -> None:
        self.start("hub", "hub", "start", "hub")
        for name in self.hospitals:
            self.site(name)
        self.wait(lambda: "starts with 4 sites" in self.said("hub"), "the start")
        self.say("all four have approved the run and joined")

    def status(self, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.coterie("hub", "status", "hub", "--json", code=code))
        return found

    def decide(self) -> dict[str, Any]:
        self.invite("study", "[compare]\nseeds = 1\n", first=True)
        self.begin()
        self.ended("hub", *self.hospitals)
        told = json.loads((self.folder / "hub/runs/study/out/deployment.json").read_text())
        after = f"{told['exchanges']} questions in {told['seconds']} s"
        self.say(f"decided after {after}: {told['recommendation']}, {told['sure']}")
        assert self.status()["run"]["state"] == "finished"
        return told

    def train(self, rounds: int = 16, lost: str = "hungarian") -> dict[str, Any]:
        for name in ("hub", *self.hospitals):
            (self.folder / f"{name}.out").unlink(missing_ok=True)
        self.invite("train", TRAINING.format(rounds=rounds), first=False)
        self.begin()
        self.wait(lambda: "round 2 of" in self.said("hub"), "the second round")
        os.kill(self.running[lost].pid, signal.SIGKILL)
        self.running.pop(lost).wait()
        self.site(lost, invited=False)
        self.say(f"{lost} is killed, and started again")
        self.wait(lambda: f"{lost} in train: " in self.said("hub"), "its loss")
        self.wait(lambda: self.said(lost).count("has joined") == 2, "its return")
        self.say(f"{lost} was lost in a round, and is back")
        self.ended("hub", *self.hospitals)
        told = json.loads((self.folder / "hub/runs/train/out/deployment.json").read_text())
        self.say(f"trained: {', '.join(f'{k} {v:.3f}' for k, v in told['scores'].items())}")
        return told

    def predict(self, name: str = "va") -> pd.DataFrame:
        self.coterie("site", "predict", f"at-{name}", f"{name}.csv", "--out", f"{name}-predicted.csv")
        made = pd.read_csv(self.folder / f"{name}-predicted.csv")
        right = (made["prediction"] == pd.read_csv(self.folder / f"{name}.csv")["target"]).mean()
        self.say(f"{name} predicts its {len(made)} rows by itself; {right:.0%} are right")
        return made

    def left(self) -> dict[str, dict[str, Any]]:
        found = {name: json.loads(self.coterie("site", "report", f"at-{name}", "--json")) for name in self.hospitals}
        for name, told in found.items():
            self.say(f"{told['messages']} messages with {told['bytes']:,} bytes left {name}: at-{name}/left.html")
            self.coterie("site", "clean", f"at-{name}")
        return found


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="consortium-"))
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(folder, lambda line: print(line, flush=True))
    try:
        story.decide()
        story.train()
        story.predict()
        story.left()
    finally:
        story.stop()
    print(f"Everything is in {folder}.")


if __name__ == "__main__":
    main()
