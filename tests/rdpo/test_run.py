"""A training run as a whole: logs, checkpoints, the command; killed, resumed, shared by two processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed.backbones.loading import load_backbone
from allocembed.errors import ConfigError, DataError, OutputError, PolicyError
from allocembed.policy.scale_policy import ScalePolicy
from allocembed.rdpo.checkpoint import TrainingProgress, read_state, save_state
from allocembed.rdpo.config import make_config
from allocembed.rdpo.log import Log, keep_until
from allocembed.rdpo.run import TrainingRun, only_run, train
from tests.command import run
from tests.small_runs import SMALL, furthest, lines, small, small_trainer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(nano_tiny) -> Path:
    return nano_tiny


@pytest.fixture(scope="module")
def backbone(folder):
    return load_backbone(folder, device="cpu")


@pytest.fixture(scope="module")
def unbroken(folder, tmp_path_factory) -> Path:
    """The folder of a run that nothing happened to."""
    config = small(folder, tmp_path_factory.mktemp("runs") / "unbroken")
    train(config)
    return Path(config.out)


def weights(out: Path) -> dict[str, torch.Tensor]:
    """The policy's, and those of the mean that is kept of them."""
    state = read_state(out / "state")
    return {f"{part} {name}": tensor for part in ("policy", "mean") for name, tensor in state[part].items()}


def environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **quiet, "PYTHONPATH": str(ROOT)}


def wait_for_step(out: Path, number: int, process: subprocess.Popen) -> None:
    """Until the log of a run holds a step."""
    log, deadline = out / "train.jsonl", time.monotonic() + 120
    while not (log.exists() and f'"step", "step": {number}' in log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_leaves_its_best_policy_its_state_its_config_and_its_log(unbroken, folder):
    policy = ScalePolicy.from_pretrained(unbroken / "best")
    assert policy.config.preview_source == str(folder) and policy.config.trained["steps"] in (2, 4)
    assert "validation" in (unbroken / "best" / "README.md").read_text()
    assert make_config({}, unbroken / "train.toml") == make_config({}, unbroken / "best" / "train.toml")
    state = read_state(unbroken / "state")
    assert state["progress"]["step"] == 4 and state["progress"]["skipped"] == 0
    assert [line["step"] for line in lines(unbroken)] == [1, 2, 3, 4]
    assert [line["step"] for line in lines(unbroken, "validation")] == [2, 4]
    assert len(lines(unbroken, "uniform")) == 1
    for line in (*lines(unbroken), *lines(unbroken, "validation")):
        assert 0.9 < line["cost"] <= 1 and 0.2 <= line["scale"] <= 1.8 and 0.25 <= line["concentration"] <= 1
        assert 0 <= line["hit1"] <= 1


@pytest.mark.slow
def test_the_weights_move_and_the_same_seed_moves_them_the_same_way(unbroken, backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path / "again")
    fresh = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    assert furthest(fresh, trainer.mean.state_dict()) == 0
    TrainingRun(trainer).go()
    assert furthest(fresh, trainer.policy.state_dict()) > 1e-4 < furthest(fresh, trainer.mean.state_dict())
    assert furthest(weights(tmp_path / "again"), weights(unbroken)) == 0
    other = small_trainer(backbone, tmp_path / "other", seed=1)
    assert furthest(other.policy.state_dict(), fresh) > 1e-2


@pytest.mark.slow
def test_a_run_killed_in_the_middle_goes_on_to_the_very_same_weights(unbroken, folder, tmp_path):
    config = small(folder, tmp_path / "killed")
    file = tmp_path / "train.toml"
    file.write_text(config.as_toml())
    process = subprocess.Popen([sys.executable, "-m", "allocembed", "train", file], env=environment(), cwd=tmp_path)
    wait_for_step(tmp_path / "killed", 2, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert read_state(tmp_path / "killed" / "state")["progress"]["step"] < 4
    train(config, resume=True)
    assert furthest(weights(tmp_path / "killed"), weights(unbroken)) == 0
    assert [line["step"] for line in lines(tmp_path / "killed")] == [1, 2, 3, 4]
    best = [ScalePolicy.from_pretrained(out / "best").state_dict() for out in (tmp_path / "killed", unbroken)]
    assert furthest(*best) == 0


@pytest.mark.slow
def test_sigterm_finishes_the_step_saves_and_says_how_to_go_on(unbroken, backbone, tmp_path, capsys):
    out = tmp_path / "asked"

    def ask(step: int) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGTERM)

    progress = TrainingRun(small_trainer(backbone, out, save_every=100), ask).go()
    assert progress.stopped_by == signal.SIGTERM
    assert progress.step == 2 and read_state(out / "state")["progress"]["step"] == 2
    assert f"allocembed train {out}/train.toml --resume" in capsys.readouterr().err.replace("\n", "")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert TrainingRun(small_trainer(backbone, out, save_every=100)).go(resume=True).step == 4
    assert furthest(weights(out), weights(unbroken)) == 0


def test_a_state_that_finds_no_room_is_said_and_leaves_the_old_one(backbone, tmp_path, full_disk):
    trainer = small_trainer(backbone, tmp_path)
    (tmp_path / "state.pt").write_text("old")
    with pytest.raises(OutputError, match=re.escape(full_disk.format(tmp_path / "state.pt"))):
        save_state(tmp_path, trainer.parts, TrainingProgress(), trainer.config)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert (tmp_path / "state.pt").read_text() == "old"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_was_stopped_ends_with_the_signals_status(folder, tmp_path, number, status):
    file = tmp_path / "train.toml"
    file.write_text(small(folder, tmp_path / "run", steps=1000).as_toml())
    command = [sys.executable, "-m", "allocembed", "train", file]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for_step(tmp_path / "run", 1, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status, said
    assert f"resume it with allocembed train {tmp_path}/run/train.toml --resume" in said
    assert "\nstopped\n" not in said, "it has said so itself"
    made = read_state(tmp_path / "run" / "state")["progress"]
    assert made["step"] == len(lines(tmp_path / "run")) and not made["stopped_by"]


def test_a_run_may_start_from_another_allocator(unbroken, backbone, tmp_path):
    best = unbroken / "best"
    trainer = small_trainer(backbone, tmp_path, start_from=str(best))
    assert furthest(trainer.policy.state_dict(), ScalePolicy.from_pretrained(best).state_dict()) == 0
    with pytest.raises(PolicyError, match="its sizes are"):
        small_trainer(backbone, tmp_path, start_from=str(best), width=64)


def test_time_that_is_up_ends_the_run_with_everything_saved(backbone, tmp_path):
    late = {"minutes": 1e-6, "save_every": 100, "validate_every": 100}
    progress = TrainingRun(small_trainer(backbone, tmp_path / "late", **late)).go()
    assert progress.step == 1 and progress.best >= 0
    assert ScalePolicy.from_pretrained(tmp_path / "late" / "best").config.trained["steps"] == 1


@pytest.mark.slow
def test_two_processes_with_sharded_weights_make_the_updates_of_one(unbroken, folder, tmp_path):
    # Six examples in mini-batches of four and micro-batches of two: the processes' shares are unequal in every way.
    config = small(folder, tmp_path / "two")
    file = tmp_path / "train.toml"
    file.write_text(config.as_toml())
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "allocembed", "train", file]
    subprocess.run([sys.executable, "-m", *launch], env=environment(), cwd=tmp_path, check=True, timeout=200)
    assert furthest(weights(tmp_path / "two"), weights(unbroken)) < 1e-5
    for kind in ("step", "validation"):
        for one, two in zip(lines(unbroken, kind), lines(tmp_path / "two", kind), strict=True):
            for name in ("hit1", "cost", "scale", "concentration"):
                assert two[name] == pytest.approx(one[name], abs=1e-5)
    # What several processes saved, one can go on with.
    more = replace(config, steps=4, minutes=1.0)
    assert train(more, resume=True).step == 4


def test_another_run_is_not_overwritten_and_another_config_not_continued(unbroken, backbone):
    with pytest.raises(ConfigError, match=r"holds a run already: resume it with .*train\.toml --resume"):
        TrainingRun(small_trainer(backbone, unbroken)).go()
    with pytest.raises(ConfigError, match=r"with learning_rate = 5e-05, not 0\.5; use its own train\.toml"):
        TrainingRun(small_trainer(backbone, unbroken, learning_rate=0.5)).go(resume=True)
    with pytest.raises(DataError, match="no saved state"):
        TrainingRun(small_trainer(backbone, unbroken / "elsewhere")).go(resume=True)


def test_a_full_disk_at_the_first_save_is_no_dead_end(unbroken, backbone, tmp_path, monkeypatch, capsys):
    def refuse(*_, **__) -> None:
        raise OutputError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OutputError, match="no space left"):
        patch.setattr("allocembed.rdpo.run.save_state", refuse)
        TrainingRun(small_trainer(backbone, tmp_path)).go()
    with pytest.raises(DataError, match="without --resume"):
        TrainingRun(small_trainer(backbone, tmp_path)).go(resume=True)
    with pytest.raises(ConfigError, match=r"with learning_rate = 5e-05, not 0\.5"):
        TrainingRun(small_trainer(backbone, tmp_path, learning_rate=0.5)).go()
    assert TrainingRun(small_trainer(backbone, tmp_path)).go().step == 4
    assert "ended before it saved a state: starting anew" in capsys.readouterr().err.replace("\n", " ")
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4] and len(lines(tmp_path, "uniform")) == 1
    assert furthest(weights(tmp_path), weights(unbroken)) == 0


def test_two_processes_do_not_train_in_one_folder(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path / "run")
    with only_run(tmp_path / "run"), pytest.raises(ConfigError, match="another process trains in"):
        TrainingRun(trainer).go()
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flipped", "list", "parts", "weights", "text"])
def test_a_damaged_state_is_one_clear_error(unbroken, backbone, tmp_path, damage):
    path, good = tmp_path / "state" / "state.pt", (unbroken / "state" / "state.pt").read_bytes()
    path.parent.mkdir()
    state = read_state(unbroken / "state")
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "flipped":
        middle = len(good) // 2
        path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    elif damage == "text":
        path.write_text("not a state")
    else:
        first = next(iter(state["policy"]))
        other = {"list": [1], "parts": {"config": {}}, "weights": {**state, "policy": {first: torch.zeros(3)}}}
        torch.save(other[damage], path)
    with pytest.raises(DataError, match=r"state\.pt .*it is damaged; delete it and start again") as error:
        TrainingRun(small_trainer(backbone, tmp_path)).go(resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("best", "searches"), [(0.5, True), (0.7, False)])
def test_the_final_report_names_its_measure_and_compares_with_uniform(backbone, tmp_path, capsys, best, searches):
    run = TrainingRun(small_trainer(backbone, tmp_path))
    run.progress = TrainingProgress(step=4, best=best, best_step=2, uniform=0.6, searches=searches, broken=3)
    run.report()
    said = capsys.readouterr().err.replace("\n", " ")
    assert f"best: {'mean of Hit@1 and search Hit@1' if searches else 'Hit@1'} {best:.1%} after step 2" in said
    assert "uniform allocation had 60.0%" in said and ("not better" in said) == (best < 0.6)
    assert "3 videos were left out of their step" in said


def test_a_run_remembers_the_score_of_uniform_allocation(unbroken):
    progress = read_state(unbroken / "state")["progress"]
    (uniform,) = lines(unbroken, "uniform")
    assert progress["uniform"] == pytest.approx(uniform["score"], abs=1e-6)
    assert progress["searches"] == ("search1" in uniform)


def test_the_log_is_valid_json_whatever_it_measures(tmp_path):
    log = Log(tmp_path, 1)
    log.write("step", 1, {"gap": float("nan"), "gradient": float("inf"), "hit1": 0.5})
    log.close()
    (line,) = (tmp_path / "train.jsonl").read_text().split("\n")[:-1]
    assert "NaN" not in line and json.loads(line) == {
        "kind": "step",
        "step": 1,
        "gap": None,
        "gradient": None,
        "hit1": 0.5,
    }


@pytest.mark.slow
def test_out_and_resume_are_enough_to_go_on(folder, tmp_path):
    train(small(folder, tmp_path / "run", minutes=1e-6))
    result = run("train", "--out", tmp_path / "run", "--resume", "--minutes", 0)
    assert result.returncode == 0, result.stderr
    assert read_state(tmp_path / "run" / "state")["progress"]["step"] == 4


def test_a_run_with_relative_paths_goes_on_from_another_folder(folder, tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 255, (8, 6, 40, 56, 3), np.uint8)
    for number, frames in enumerate(noise):
        (tmp_path / "frames" / f"v{number}").mkdir(parents=True)
        for index, frame in enumerate(frames):
            Image.fromarray(frame).save(tmp_path / "frames" / f"v{number}" / f"{index}.png")
    records = [{"video": f"v{number}", "caption": f"noise number {number}"} for number in range(8)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "model").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    given = {"data": "train.jsonl", "videos": "frames", "validation": 2, "budgets": ["2f/6"], "like_with_like": False}
    config = small(Path("model"), Path("run"), **given, minutes=1e-6)
    train(config)
    stated = make_config({}, tmp_path / "run" / "train.toml")
    found = [Path(path).relative_to(tmp_path) for path in (stated.data, stated.videos, stated.backbone)]
    assert [*map(str, found)] == ["train.jsonl", "frames", "model"]
    monkeypatch.chdir(folder)
    assert train(replace(stated, minutes=0), resume=True).step == 4
    monkeypatch.chdir(tmp_path)
    assert train(config, resume=True).step == 4, "the options that it was started with are its own, too"


def test_videos_that_can_not_be_found_are_an_error_before_anything_is_trained(folder, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(f'{{"video": "v{n}", "caption": "text {n}"}}' for n in range(9)))
    given = {"data": str(tmp_path / "train.jsonl"), "like_with_like": False}
    with pytest.raises(DataError, match="there is no folder"):
        train(small(folder, tmp_path / "run", videos=str(tmp_path / "nowhere"), **given))
    with pytest.raises(DataError, match="none of the videos held out for validation can be read"):
        train(small(folder, tmp_path / "run", **given))
    assert not (tmp_path / "run" / "best").exists()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="has no usable line"):
        train(small(folder, tmp_path / "other", data=str(tmp_path / "empty.jsonl")))


def test_a_log_is_cut_back_to_the_step_a_run_goes_on_from(tmp_path):
    log = tmp_path / "train.jsonl"
    log.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "step": 2}\n{"kind": "st')
    keep_until(log, 1)
    assert log.read_text() == '{"kind": "step", "step": 1}\n'
    strange = ["[" * 100_000, '"\\ud83d"', "5", '{"step": "x"}', '{"step": 1, "note": "a\u2028b"}']
    log.write_text("\n".join(strange), encoding="utf-8")
    keep_until(log, 1)
    assert log.read_text(encoding="utf-8") == strange[-1] + "\n"


def test_tensorboard_gets_the_curves_where_it_is_installed(backbone, tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def close(self) -> None:
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    TrainingRun(small_trainer(backbone, tmp_path / "run", steps=1)).go()
    assert written[0] == (str(tmp_path / "run" / "tensorboard"), None) and written[-1] == "closed"
    assert {("step/hit1", 1), ("step/cost", 1), ("validation/hit1", 1), ("uniform/hit1", 0)} <= set(written)


def test_the_command_trains_from_a_jsonl_and_names_what_it_left_out(folder, tmp_path):
    rng = np.random.default_rng(0)
    records = []
    for number in range(8):
        frames = tmp_path / f"v{number}"
        frames.mkdir()
        for index in range(6):
            Image.fromarray(rng.integers(0, 255, (40, 56, 3), np.uint8)).save(frames / f"{index}.png")
        records.append({"id": number, "video": frames.name, "caption": f"noise number {number}"})
    records.append({"id": "x", "video": "nowhere", "caption": "nothing"})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    options = {**SMALL, "steps": 2, "validation": 2, "backbone": folder, "out": tmp_path / "run", "budgets": "2f/6"}
    options |= {"data": tmp_path / "train.jsonl", "preset": "nano"}
    words = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    result = run("train", *words)
    assert result.returncode == 0, result.stderr
    assert "1 lines or videos were skipped" in result.stderr and "nowhere" in result.stderr
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()


def test_an_allocator_on_smolvlm2_previews_trains_too(folder, smol_folder, tmp_path):
    config = small(
        folder, tmp_path / "run", preview="smolvlm2", preview_source=str(smol_folder), preview_summary=False, steps=1
    )
    train(config)
    assert ScalePolicy.from_pretrained(tmp_path / "run" / "best").config.preview == "smolvlm2"


def test_the_commands_help_is_the_docstrings_of_the_config_and_unknown_options_get_the_nearest():
    shown = run("train", "--help").stdout
    for text in ("--rollouts", "K, the allocations sampled for each example.", "--no-confidence", "--resume"):
        assert text in shown
    wrong = run("train", "--rolouts", "3")
    assert wrong.returncode == 2 and "--rollouts" in wrong.stderr


def test_global_switches_and_the_lent_backbone_are_as_before(backbone, folder, tmp_path):
    before = torch.backends.cuda.cudnn_sdp_enabled(), list(warnings.filters), dict(vars(backbone))
    train(small(folder, tmp_path / "run", steps=1), backbone=backbone)
    assert (torch.backends.cuda.cudnn_sdp_enabled(), list(warnings.filters), dict(vars(backbone))) == before
