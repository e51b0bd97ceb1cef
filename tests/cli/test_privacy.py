"""`coterie privacy`: budget, receipt and audit; [privacy] in a configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli.commands import main
from coterie.cli.config import Config, loader
from coterie.cli.table_options import TableSource

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["privacy", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def folder(fed: ct.Federation, task: ct.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    sgd = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    privacy = ct.Privacy(2.0, 1e-5, clip=1.0)
    with pytest.warns(ct.errors.CoterieWarning):
        ct.fit(ct.FedAvg(sgd), fed, task, rounds=4, out=out, alone=False, privacy=privacy)
    return out


def test_budget_prints_the_noise(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("budget", "--epsilon", "3", "--delta", "1e-6", "--rounds", "50")
    assert call(*wanted) == 0
    assert "z = 10.92" in capsys.readouterr().out
    assert call(*wanted, "--parameters", "44000", "--clients", "66") == 0
    assert "larger than the signal" in capsys.readouterr().out
    assert call("budget", "--epsilon", "-1", "--delta", "1e-6", "--rounds", "5") == 2
    assert "epsilon must be" in capsys.readouterr().err


def test_receipt_of_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("receipt", str(folder)) == 0
    assert "zero-out" in capsys.readouterr().out
    assert call("receipt", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert call("receipt", str(tmp_path)) == 2
    assert "holds no receipt" in capsys.readouterr().err


def test_a_receipt_that_promises_nothing_ends_with_1(
    folder: Path, fed: ct.Federation, task: ct.Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = json.loads((folder / "receipt.json").read_text()) | {"epsilon": 0.1}
    (tmp_path / "receipt.json").write_text(json.dumps(lie))
    assert call("receipt", str(tmp_path)) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "cannot be believed: it states ε = 0.1" in told.err
    void = {"privacy": ct.Privacy(2.0, 1e-5, clip=1.0), "callbacks": [lambda run: None], "out": tmp_path / "void"}
    ct.fit(ct.FedAvg(), fed, task, rounds=1, alone=False, progress=False, **void)
    assert call("receipt", str(tmp_path / "void")) == 1
    told = capsys.readouterr()
    assert told.out.startswith("NO PRIVACY CLAIM")
    assert "Checked" in told.out


def test_declared_classes_are_whole_numbers_where_they_look_like_some() -> None:
    def named(classes: str | None) -> list[object] | None:
        return TableSource(Path("t.csv"), "who", "y", classes=classes).named_classes(private=True)

    assert named("-1, 0,12") == [-1, 0, 12]
    assert named("0,²,--3,a-1") == ["0", "²", "--3", "a-1"]
    assert named(None) is None


def test_audit_of_a_run_and_of_a_mechanism(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "audit.png"
    for what in (str(folder), "joint-sum", "group-sums"):
        assert call("audit", what, "--epsilon", "3", "--trials", "20000", "--out", str(picture)) == 0
        assert "audit: pass" in capsys.readouterr().out
        assert picture.read_bytes().startswith(b"\x89PNG")
    for what in ("local-gaussian", "one-bit"):
        assert call("audit", what, "--trials", "500", "--out", str(picture)) == 0
    lie = json.loads((folder / "receipt.json").read_text())
    lie["epsilon"] = 0.2
    (tmp_path / "receipt.json").write_text(json.dumps(lie))
    capsys.readouterr()
    assert call("audit", str(tmp_path), "--trials", "5000", "--out", str(picture)) == 1
    assert "audit: fail" in capsys.readouterr().out
    assert call("audit", "nothing", "--out", str(picture)) == 2


def test_classes_in_a_file_are_declared(tmp_path: Path) -> None:
    """Who writes a configuration has not looked at anybody's rows."""
    rows = [f"c{i % 3},{i * 0.37 % 1:.3f},{i // 3 % 2}" for i in range(30)]
    (tmp_path / "t.csv").write_text("who,a,y\n" + "\n".join(rows))
    data = {"path": "t.csv", "client": "who", "target": "y"}
    assert "classes" not in loader(data, tmp_path, private=True)().declared
    assert "classes" in loader(data | {"classes": [0, 1]}, tmp_path, private=True)().declared


def test_a_configuration_has_a_privacy_section(tmp_path: Path) -> None:
    text = """
        [data]
        name = "digits"
        [algorithm]
        name = "fedavg"
        [privacy]
        epsilon = 3
        delta = 1e-6
        clip = 0.5
        noise = "simulation"
        ledger = "book.sqlite"
    """
    file = tmp_path / "config.toml"
    file.write_text(text)
    wanted = ct.Privacy(3.0, 1e-6, 0.5, noise="simulation", ledger="book.sqlite")
    assert Config.load(file).privacy() == wanted
    file.write_text(text.replace("clip", "clp"))
    with pytest.raises(ct.errors.ConfigError, match=r"privacy\.clp.*clip"):
        Config.load(file)


def test_compare_with_half_a_budget_or_a_strange_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    rows = [f"c{i % 3},{i * 0.37 % 1:.3f},{i % 2}" for i in range(30)]
    table.write_text("who,a,y\n" + "\n".join(rows))
    for options, told in (
        (["--epsilon", "3"], "needs both --epsilon and --delta"),
        (["--epsilon", "0", "--delta", "1e-6"], "epsilon to be a finite number above 0"),
        (["--epsilon", "3", "--delta", "1e-6", "--target-range", "low"], "--target-range must be two numbers"),
        (["--epsilon", "3", "--delta", "1e-6", "--clip", "-1"], "clip to be a number from"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(table), "--client", "who", "--target", "y", *options])
        assert ended.value.code == 2
        assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("mechanism", ["noisy-power", "quantile"])
def test_the_power_method_and_the_quantile_are_audited(
    mechanism: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("audit", mechanism, "--trials", "4000", "--out", str(tmp_path / "a.png")) == 0
    assert "audit: " in capsys.readouterr().out
