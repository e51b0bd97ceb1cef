"""Hub and sites as real processes on loopback, with TLS, keys and Flower: a whole story, and what happens in a fault."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.flower.roles import keys
from coterie.flower.roles.gate import STATE
from coterie.flower.roles.hub import DOOR, Hub

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(
        importlib.util.find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it"
    ),
]


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("consortium", Path(__file__).parents[3] / "tools" / "consortium.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["consortium"] = module
    spec.loader.exec_module(module)
    made = module.Story(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_four_hospitals_decide_train_lose_one_and_predict(story: Any) -> None:
    decided = story.decide()
    assert decided["lost"] == []
    assert decided["clients"] == 4
    trained = story.train()
    assert trained["finished"]
    assert trained["scores"]["accuracy"] > 0.75
    events = [json.loads(x) for x in (story.folder / "hub/runs/train/out/events.jsonl").read_text().splitlines()]
    assert {e["site"] for e in events if e["phase"] == "train"} == {"hungarian"}  # a name, not a number
    told = story.status()
    assert (told["run"]["round"], told["run"]["of"], told["sites"]["hungarian"]["late"] > 0) == (16, 16, True)
    made = story.predict()
    assert len(made) == 200
    left = story.left()
    assert all(f"{left[name]['bytes']:,} bytes" in (story.folder / f"at-{name}/left.html").read_text() for name in left)
    assert not list(story.folder.glob("at-*/*/rows"))


def test_a_superlink_that_dies_and_a_second_site_of_one_name(story: Any) -> None:
    """The hub starts what died, the run goes on after its last round, and nobody sees a traceback."""
    training = '[algorithm]\nname = "fedavg"\n[algorithm.local]\nsteps = 5\nlr = 0.1\n\n[run]\nrounds = 8\n'
    story.invite("train", training, first=True)
    sent = story.folder / "hub/runs/train/site_app/client_app.py"  # what a hub's operator sends runs at no site
    marker = story.folder / "ran"
    sent.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\napp = None\n")
    story.begin()
    refused_outside(story)
    twin = ("site", "start", "twin", "--table", "va.csv", "--invite", "hub/invitations/va.json", "--approve", "always")
    story.coterie(*twin, code=2)
    assert not list(story.folder.glob("twin/outgoing.jsonl"))
    story.wait(lambda: "round 2 of" in story.said("hub"), "the second round")
    os.killpg(superlink(story.running["hub"].pid), signal.SIGKILL)
    story.wait(lambda: "superlink ended" in story.said("hub"), "the word of the hub")
    story.ended("hub", *story.hospitals)
    said = story.said("hub")
    assert "Traceback" not in said
    rounds = [int(n) for n in re.findall(r" round (\d+) of 8", said)]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 8
    assert not marker.exists()
    assert "The results are in" in story.coterie("hub", "start", "hub")  # over: nothing is started


def superlink(hub: int) -> int:
    """The process of the SuperLink that a hub has started."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (place / "stat").read_text(), (place / "cmdline").read_bytes()
        except OSError:
            continue
        if int(status.rsplit(")", 1)[1].split()[1]) == hub and b"superlink" in command:
            return int(place.name)
    raise AssertionError("the hub has no SuperLink")


def refused_outside(story: Any) -> None:
    """Other machines reach neither operators' nor workers' requests, with the right certificate in hand."""
    hub = Hub.load(story.folder / "hub")
    trusted = ssl.create_default_context(cafile=str(hub.folder / keys.AUTHORITY))
    inside = json.loads((hub.folder / DOOR).read_text())["port"]
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/health", STATE):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"https://{hub.about['address']}{path}", context=trusted, timeout=10)
    with urllib.request.urlopen(f"https://127.0.0.1:{inside}/health", context=trusted, timeout=10) as answer:
        assert answer.status == 200
