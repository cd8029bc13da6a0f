"""A run that is killed, at whatever moment, and resumed is the run that was never killed; full disks and Ctrl-C.

TSQA_KILLS=30 python -m pytest tests/test_crash.py -k random    kills each stage at so many random moments (default: 2)
"""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

import data
import ppo
import tsqa

STAGES = {
    "sft": "--stage sft --model {toy} --n-train 24 --n-dev 4 --epochs 2 --batch-size 8 --dropout 0.1 --setting reason",
    "pretrain": "--stage pretrain --steps 7 --max-pieces 512",
    "ppo": "--ckpt {toy} --data mini --setting reason --n-train 9 --n-dev 3 --iterations 4 --num-rollouts 8 --samples 2"
    " --batch-size 4 --max-new-tokens 4 --eval-every 2",
}
STEPS = {"sft": ("tsqa", "train_step"), "pretrain": ("tsqa", "pretrain_step"), "ppo": ("ppo", "sample")}
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}


@pytest.fixture(scope="module")
def processes():
    """New processes fork from one that has everything imported but has computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ppo", "torch._dynamo"])  # the first optimizer step imports the second: seconds
    return context


def work(stage, argv, said, plan=None, limit=None):
    """In a process of its own: the stage, ended by its own hand where `plan` says, in files of `limit` bytes at most.

    plan: (how, module, function, n, when): the n-th call of the function, when = before it or after it.
    """
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored in the background
    torch.set_num_threads(1)
    config = tsqa.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=5, num_decoder_layers=1, num_heads=4)
    if stage == "pretrain":
        tsqa.read_config = lambda _: config
        tsqa.Curriculum.shares = lambda self: dict.fromkeys(self.size, 1 / 6)
    if plan:
        how, module, function, n, when = plan
        owner = {"tsqa": tsqa, "ppo": ppo, "os": os}[module]
        real, calls = getattr(owner, function), []

        def last(*args, **more):
            calls.append(1)
            if len(calls) == n and when == "before":
                os.kill(os.getpid(), SIGNALS[how])
            out = real(*args, **more)
            if len(calls) == n and when == "after":
                os.kill(os.getpid(), SIGNALS[how])
            return out

        setattr(owner, function, last)
    sys.argv, usual = [f"{'ppo' if stage == 'ppo' else 'tsqa'}.py", *argv], resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit or usual[0], usual[1]))
    try:
        data.run((ppo if stage == "ppo" else tsqa).main)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)  # coverage has a file to write, too


def start(processes, stage, toy, out, *more, **how):
    argv = STAGES[stage].format(toy=toy).split() + [
        "--dtype",
        "float32",
        "--save-minutes",
        "0",
        "--out",
        str(out),
        *more,
    ]
    argv += ["--log-every", "2"] if stage != "ppo" else []
    heard, said = processes.Pipe(duplex=False)
    process = processes.Process(target=work, args=(stage, argv, said), kwargs=how)
    process.start()
    said.close()
    return process, heard


def finish(processes, stage, toy, out, *more, **how):
    """-> exit status (minus the signal that ended it), what was printed"""
    process, heard = start(processes, stage, toy, out, *more, **how)
    text = b"".join(iter(lambda: os.read(heard.fileno(), 1 << 16), b"")).decode()
    process.join(60)
    assert process.exitcode is not None, "still running"
    return process.exitcode, text


def same(a, b):
    if torch.is_tensor(a):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def metrics(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def same_run(a, b):
    states = [torch.load(out / "trainer.pt", weights_only=True) for out in (a, b)]
    assert same(*states), [k for k in states[0] if not same(states[0][k], states[1][k])]
    assert metrics(a) == metrics(b)
    for name in ("model.safetensors", "config.json", "spiece.model", "args.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert not list(b.glob(".*.tmp"))


def whole_files(out):
    """Whatever has its final name is whole."""
    if (out / "trainer.pt").exists():
        torch.load(out / "trainer.pt", weights_only=True)
    if (out / "model.safetensors").exists():
        tsqa.T5.from_pretrained(out)
    for name in ("args.json", "config.json"):
        if (out / name).exists():
            json.loads((out / name).read_text())


@pytest.fixture(scope="module")
def uninterrupted(processes, toy, tmp_path_factory):
    """stage -> (run directory, seconds), made once"""
    runs = {}

    def get(stage):
        if stage not in runs:
            out, begun = tmp_path_factory.mktemp("runs") / stage, time.time()
            code, text = finish(processes, stage, toy, out)
            assert code == 0, text
            runs[stage] = out, time.time() - begun
        return runs[stage]

    return get


KILLS = {  # one after the other, in one run: each resumes what the one before has left
    "sft": [
        ("tsqa", "encode_sources", 1, "before"),  # nothing is written yet
        ("os", "fsync", 5, "before"),  # the first state: its temporary file is full, but has no name yet
        ("tsqa", "train_step", 3, "after"),
        ("tsqa", "evaluate_dev", 1, "after"),
        (
            "os",
            "replace",
            3,
            "after",
        ),  # args and metrics are written, and the weights, but not yet the state that knows
        ("tsqa", "log_metrics", 2, "after"),
    ],
    "pretrain": [
        ("tsqa", "pretrain_step", 4, "before"),
        ("os", "replace", 6, "before"),
        ("tsqa", "log_metrics", 2, "after"),
    ],
    "ppo": [
        ("ppo", "save_trainer", 1, "before"),
        ("ppo", "evaluate_dev", 1, "after"),
        ("ppo", "sample", 2, "after"),
        ("os", "fsync", 9, "before"),
        ("ppo", "evaluate_dev", 1, "before"),
    ],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_resumes_to_the_same_bits(processes, uninterrupted, toy, tmp_path, stage):
    out, resumed = tmp_path / "run", []
    for plan in KILLS[stage]:
        code, text = finish(processes, stage, toy, out, *resumed, plan=("kill", *plan))
        assert code == -signal.SIGKILL, (plan, text)
        whole_files(out)
        resumed = ["--resume"] if (out / "args.json").exists() else []
    assert resumed and metrics(out)
    code, text = finish(processes, stage, toy, out, *resumed)
    assert code == 0, text
    same_run(uninterrupted(stage)[0], out)
    code, text = finish(processes, stage, toy, out, *resumed)  # a run that is over changes no more
    assert code == 0, text
    same_run(uninterrupted(stage)[0], out)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_random_moments(processes, uninterrupted, toy, tmp_path, stage):
    left, rng = int(os.environ.get("TSQA_KILLS", "2")), random.Random(stage)
    whole, seconds = uninterrupted(stage)
    out = tmp_path / "run"
    while left:
        begun = time.time()
        process, _ = start(processes, stage, toy, out, *(["--resume"] if (out / "args.json").exists() else []))
        process.join(rng.uniform(0.1, 1.0) * seconds)
        process.kill()
        process.join()
        whole_files(out)
        print(stage, left, process.exitcode, metrics(out)[-1:] if (out / "metrics.jsonl").exists() else "")
        if process.exitcode == 0:  # it was over before
            same_run(whole, out)
            out, seconds = tmp_path / f"run{begun}", time.time() - begun
        left -= process.exitcode != 0
    code, text = finish(processes, stage, toy, out, *(["--resume"] if (out / "args.json").exists() else []))
    assert code == 0, text
    same_run(whole, out)


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_says_how_to_go_on(processes, toy, tmp_path, stage):
    code, text = finish(processes, stage, toy, tmp_path / "a", plan=("interrupt", *STEPS[stage], 2, "before"))
    assert code == 130 and "Traceback" not in text, text
    (line,) = [line for line in text.splitlines() if "interrupted" in line]
    assert line.startswith("interrupted at ") and "; go on with: python " in line
    assert line.endswith(" --resume") and str(tmp_path / "a") in line
    assert (tmp_path / "a" / "trainer.pt").exists()


@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_ctrl_c_while_data_are_encoded(processes, toy, tmp_path, stage):
    plan = ("interrupt", {"sft": "tsqa", "ppo": "ppo"}[stage], "encode_sources", 1, "before")
    code, text = finish(processes, stage, toy, tmp_path / "a", plan=plan)
    assert code == 130 and "Traceback" not in text, text
    assert "interrupted; start again with: python " in text and "--resume" not in text
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_leaves_the_last_good_state(processes, uninterrupted, toy, tmp_path, stage):
    out = tmp_path / "run"
    finish(processes, stage, toy, out, plan=("kill", *STEPS[stage], 3, "before"))
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for limit, names in ((10_000, ("trainer.pt", "spiece.model")), (50, ("args.json",))):
        code, text = finish(processes, stage, toy, out, "--resume", limit=limit)
        assert code == 2 and "Traceback" not in text, text
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert any(f"cannot write {out / name} (File too large)" in line for name in names), line
        assert {p.name for p in out.iterdir()} == before.keys()
        assert all((out / n).read_bytes() == before[n] for n in ("trainer.pt", "args.json"))
    code, text = finish(processes, stage, toy, out, "--resume")
    assert code == 0, text
    same_run(uninterrupted(stage)[0], out)


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_fills_up(processes, uninterrupted, toy, tmp_path, stage):
    """The same on a small tmpfs, full to its last byte: what only root may mount."""
    (disk := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs: {mounted.stderr.decode().strip()}")
    out, filler = disk / "run", disk / "filler"
    try:
        finish(processes, stage, toy, out, plan=("kill", *STEPS[stage], 3, "before"))
        before = {p.name: p.read_bytes() for p in out.iterdir()}
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
            while f.write(b"x" * 4096):
                pass
        code, text = finish(processes, stage, toy, out, "--resume")
        assert code == 2 and "Traceback" not in text, text
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert line.startswith(f"error: cannot write {out}/") and "(No space left on device)" in line
        assert {p.name for p in out.iterdir()} == before.keys()
        assert all((out / n).read_bytes() == before[n] for n in ("trainer.pt", "args.json"))
        filler.unlink()
        code, text = finish(processes, stage, toy, out, "--resume")
        assert code == 0, text
        same_run(uninterrupted(stage)[0], out)
    finally:
        subprocess.run(["umount", disk], check=False)


@pytest.mark.parametrize("out", ["/proc/self", "/proc/none/run", "/dev/null/run"])
def test_a_folder_that_takes_no_files_is_found_at_once(toy, out, monkeypatch):
    monkeypatch.setattr(tsqa, "load_run", None)  # is not reached
    with pytest.raises(data.UserError, match=rf"^--out {out}: cannot write into this folder \(.+\); choose another$"):
        tsqa.sft(tsqa.parse_args(["--model", str(toy), "--out", out]))


def test_metrics_that_cannot_be_written(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(
        data.UserError, match=r"cannot write .*metrics\.jsonl \(Is a directory\); free the place, then --resume"
    ):
        tsqa.log_metrics(tmp_path, step=1)
