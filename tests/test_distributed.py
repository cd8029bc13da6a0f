"""Several processes: torchrun gives what one process gives, the first alone writes and speaks, errors end all of them.

Run as a script, this file is what one of two processes does; the tests start both. gloo, on one machine, no GPU needed.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import ppo
import tsqa
from data import EOS, Tokenizer, UserError

SFT = (
    "--stage sft --setting reason --dtype float32 --n-train 21 --n-dev 3 --epochs 2 --batch-size 5 --accum 2 --warmup 2"
)
SFT += " --lr 1e-2 --log-every 1"  # 21 = 4 * 5 + 1: the last batch has a row for one of the processes only
PPO = "--setting reason --dtype float32 --n-train 20 --n-dev 3 --num-rollouts 12 --samples 2 --batch-size 6 --chunk-size 2"
PPO += " --ppo-epochs 2 --max-new-tokens 6 --iterations 3 --lr 3e-3 --stop-kl 1e6 --max-kl 1e6 --eval-every 2"


def model(directory, scale=1.0):
    """A directory with a random model of 60,000 parameters and the bundled tokenizer."""
    torch.manual_seed(0)
    c = tsqa.T5Config(d_model=24, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, time_window=2)
    t5 = tsqa.T5(c)
    t5.shared.weight.data *= scale
    t5.save_pretrained(directory)
    Tokenizer(ROOT / "assets" / "tiny-t5").save(directory)
    (directory / "args.json").write_text('{"stage": "sft"}')
    return directory


def sft(directory, out, *more):
    tsqa.sft(tsqa.parse_args([*SFT.split(), "--model", str(directory), "--out", str(out), *more]))


def run_ppo(directory, out, *more):
    """PPO with five ids to say and a reward for long answers, as in test_ppo.py: a random model tells answers apart."""

    def reward(predictions, golds, negatives, ended):
        return torch.tensor([min(len(p), 40) / 20 - 1 if e else -2.0 for p, e in zip(predictions, ended, strict=True)])

    text_ids = ppo.text_ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "make_reward", lambda *_: reward)
        patch.setattr(
            ppo, "text_ids", lambda tokenizer, n, device: text_ids(tokenizer, n) & (torch.arange(n) % 500 == EOS)
        )
        ppo.ppo(ppo.parse_args([*PPO.split(), "--ckpt", str(directory), "--out", str(out), *more]))


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def same(one, two, rtol=1e-5):
    """Both run directories tell the same: every figure of every line, and the last weights."""
    rows = [[{k: v for k, v in row.items() if v is not None} for row in metrics(out)] for out in (one, two)]
    assert len(rows[0]) > 4
    for a, b in zip(*rows, strict=True):
        assert a == pytest.approx(b, rel=rtol, abs=2e-5)  # figures have five or six decimals
    one, two = (torch.load(out / "trainer.pt", weights_only=True) for out in (one, two))
    assert one["step"] == two["step"] and one["best"] == pytest.approx(two["best"], rel=rtol)
    for name, x in one["model"].items():
        assert torch.allclose(x, two["model"][name], rtol=1e-3, atol=1e-4), name


def start(*command):
    """What torchrun does, without torchrun: two processes of a command -> [(exit status, stdout, stderr)]"""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at any free port
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    env |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    jobs, pipe = [], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for rank in ("0", "1"):
        env |= {"RANK": rank, "LOCAL_RANK": rank}
        jobs.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, **pipe))
    told = []
    for job in jobs:
        try:
            told.append(job.communicate(timeout=300))
        except subprocess.TimeoutExpired:
            job.kill()
            told.append(job.communicate())
    return [(job.returncode, *texts) for job, texts in zip(jobs, told, strict=True)]


def test_torchrun_trains_as_one_process_does(tmp_path):
    """The whole script, with an odd batch and a batch of one row; each file is written once, each line said once."""
    directory = model(tmp_path / "model")
    sft(directory, tmp_path / "one")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "tsqa.py", *SFT.split()]
    run += ["--model", directory, "--out", tmp_path / "two"]
    two = subprocess.run(run, check=False, cwd=ROOT, capture_output=True, text=True)
    assert two.returncode == 0, two.stderr
    same(tmp_path / "one", tmp_path / "two")
    assert two.stdout.count("best dev EM") == 1 and two.stderr.count("epoch 2/2: loss") == 1
    assert {p.name for p in (tmp_path / "one").iterdir()} == {p.name for p in (tmp_path / "two").iterdir()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What `work` below does, in two processes -> its folder, what `start` returns. One process begins the run `cut`."""
    folder = tmp_path_factory.mktemp("two")
    model(folder / "model", scale=0.3)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        save = tsqa.save_trainer

        def save_then_stop(out, model, optimizer, step, best):
            save(out, model, optimizer, step, best)
            if step == 3:
                raise KeyboardInterrupt

        patch.setattr(tsqa, "save_trainer", save_then_stop)
        sft(folder / "model", folder / "cut", "--save-minutes", "0")
    jobs = start(__file__, str(folder))
    return folder, jobs


def work(folder):
    """The jobs of each of two processes; the last one ends in an error."""
    with tsqa.processes():
        rank, _ = tsqa.ranks()
        run_ppo(folder / "model", folder / "ppo")
        sft(folder / "model", folder / "cut", "--resume")
        told = {"parts": tsqa.share(list(range(5))), "all": tsqa.gather([rank] * rank)}
        for name, guilty, in_turn in (("first", 0, True), ("second", 1, True), ("later", 1, False)):
            try:
                with tsqa.together(in_turn):
                    if rank == guilty:
                        raise UserError(f"{name} has failed")
            except UserError as e:
                told[name] = str(e)
        with tsqa.together(in_turn=True):
            assert rank == 0 or (folder / "fetched").exists()
            time.sleep(0.2)
            (folder / "fetched").touch()
        with pytest.MonkeyPatch.context() as patch:  # a full disk
            patch.setattr(tsqa, "write_atomic", lambda path, content: data.write_atomic("/dev/null/x", content))
            try:
                sft(folder / "model", folder / "full")
            except UserError as e:
                told["full"] = str(e)
        told |= {"seeds": [], "written": []}
        with pytest.MonkeyPatch.context() as patch:  # dropout of its own in each process; one of them writes
            seed, write = torch.manual_seed, tsqa.write_atomic
            patch.setattr(torch, "manual_seed", lambda x: told["seeds"].append(x) or seed(x))
            patch.setattr(tsqa, "write_atomic", lambda path, x: told["written"].append(path.name) or write(path, x))
            sft(folder / "model", folder / "drop", "--dropout", "0.1", "--epochs", "1", "--save-minutes", "0")
        (folder / f"rank{rank}").write_text(json.dumps(told))
        sft(folder / "model", folder / "cut")


def test_ppo_of_two_processes_is_that_of_one(two, tmp_path):
    """The same answers are sampled, and the same updates made of them."""
    folder, _ = two
    run_ppo(folder / "model", tmp_path / "one")
    same(tmp_path / "one", folder / "ppo")
    lengths = {row["length"] for row in metrics(folder / "ppo") if "length" in row}
    assert len(lengths) == 3 and all(1 < x < 6 for x in lengths), "no ragged answers: the test shows nothing"


def test_two_processes_go_on_with_the_run_of_one(two, tmp_path):
    folder, _ = two
    sft(folder / "model", tmp_path / "one")
    same(tmp_path / "one", folder / "cut")


def test_parts_errors_and_turns(two):
    first, second = (json.loads((two[0] / f"rank{rank}").read_text()) for rank in (0, 1))
    assert first.pop("parts") + second.pop("parts") == [0, 1, 2, 3, 4]
    seeds = [first.pop("seeds")[1:], second.pop("seeds")[1:]]  # the first of each is for the model
    assert len(seeds[0]) == 5 and len({*seeds[0], *seeds[1]}) == 10
    written = first.pop("written")
    assert second.pop("written") == [] and written.count("trainer.pt") > 4 and "model.safetensors" in written
    assert first == second and first["all"] == [1]
    assert [first[k] for k in ("first", "second", "later")] == [f"{k} has failed" for k in ("first", "second", "later")]
    assert "cannot write" in first["full"]


def test_the_first_speaks_and_an_error_ends_all(two):
    folder, (first, second) = two
    assert first[0] == second[0] == 2 and second[1:] == ("", "")
    assert first[2].splitlines()[-1].startswith(f"error: {folder / 'cut'} holds this run already")
    assert first[2].count("error:") == 1 and "Traceback" not in first[2] and "best dev EM" in first[1]


def test_the_others_keep_silent_but_for_what_nobody_foresaw(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    for command in (["--seed", "x"], ["--stage", "ask"]):  # argparse's own message, and ours
        with pytest.raises(SystemExit, match="2"):
            data.run(lambda command=command: tsqa.main(command))
    with pytest.raises(ZeroDivisionError):
        data.run(lambda: 1 / 0)
    assert capsys.readouterr() == ("", "")
    print("heard again")
    assert capsys.readouterr().out


@pytest.mark.parametrize("stage, flags", [("pretrain", ""), ("ask", "--question Who? --context Ann.")])
def test_the_other_stages_are_for_one_process(monkeypatch, stage, flags):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=f"--stage {stage} runs in one process"):
        tsqa.main(["--stage", stage, *flags.split()])


def test_a_gpu_for_each(monkeypatch):
    monkeypatch.setattr(tsqa, "ranks", lambda: (1, 2))
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match="a GPU of its own; give --device cuda"):
        tsqa.pick_device("cuda:1")
    assert tsqa.pick_device(tsqa.pick_device("cpu")) == torch.device("cpu")


def test_the_way_to_go_on_starts_as_many_processes(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(sys, "argv", ["tsqa.py", "--overwrite"])
    assert tsqa.resume_command() == "torchrun --nproc_per_node=4 tsqa.py --resume"


def test_compiled_models_keep_their_weights_and_answers(tmp_path, monkeypatch):
    """--compile reaches both stages; with a compiler that changes nothing, neither the loss nor a name changes."""
    directory, asked, real = model(tmp_path / "model"), [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: asked.append(f.__name__) or f)
    sft(directory, tmp_path / "sft", "--n-train", "5", "--epochs", "1", "--compile")
    run_ppo(directory, tmp_path / "ppo", "--iterations", "1", "--compile")
    assert asked == ["encode", "decode"] * 2
    names = set(tsqa.read_safetensors(directory / "model.safetensors"))
    assert names == set(tsqa.read_safetensors(tmp_path / "sft" / "model.safetensors"))
    assert names == set(tsqa.read_safetensors(tmp_path / "ppo" / "model.safetensors"))

    monkeypatch.setattr(torch, "compile", lambda f, **how: real(f, backend="eager", **how))
    plain, compiled = tsqa.T5.from_pretrained(directory), tsqa.compiled(tsqa.T5.from_pretrained(directory))
    ids, mask = data.pad([[5, 6, 7, 8, 1], [9, 1]])
    losses = [m(ids, mask, torch.tensor([[3, 1], [4, 1]]), ids % 2)[1] for m in (plain, compiled)]
    for loss in losses:
        loss.backward()
    assert torch.allclose(*losses) and plain.state_dict().keys() == compiled.state_dict().keys()
    for x, y in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(x.grad, y.grad, atol=1e-6)


if __name__ == "__main__":
    data.run(lambda: work(Path(sys.argv[1])))
