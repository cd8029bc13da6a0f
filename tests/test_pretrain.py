"""Pretraining of the tiny model: the tasks say what they should, the curriculum moves, a resumed run is the same run."""

import random
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import tsqa
from data import Names, Tokenizer

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(ROOT / "assets" / "tiny-t5")


def months(text):
    return [MONTHS.index(m) + 12 * int(y) for m, y in re.findall(r"\b([A-Z][a-z]{2}), (\d{3,4})\b", text)]


def labelled(tokenizer, task, name, value):
    """Texts of the runs of pieces that carry a label."""
    runs, run = [], []
    for i, label in [*zip(task.ids, getattr(task, name), strict=True), (0, None)]:
        if label == value:
            run.append(i)
        elif run:
            runs.append(tokenizer.sp.decode(run))
            run = []
    return runs


def test_fact_tasks_label_what_the_text_says(tokenizer):
    rng = random.Random(0)
    names, seen = Names(rng, "train"), {"after": 0, "before": 0, "month": 0, "several": 0}
    for n in range(400):
        level = "l2" if n % 2 else "l3"
        task = data.fact_task(rng, names, tokenizer, rng.randint(2, 6), level)
        assert len(task.ids) == len(task.dates) == len(task.facts) == len(task.golds) == len(task.named)
        gap = task.ids.index(tokenizer.sentinel(0))
        assert task.ids.count(tokenizer.sentinel(0)) == 1 and task.target[0] == tokenizer.sentinel(0)
        answer = tokenizer.sp.decode(task.target[1:])
        golds = set(labelled(tokenizer, task, "golds", 1))
        assert answer in golds
        ends = [i for i, x in enumerate(task.facts) if x >= 0]  # full stops of the facts
        starts = [task.ids.index(tokenizer.pieces("context:")[-1], gap) + 1, *(e + 1 for e in ends)]
        facts = [tokenizer.sp.decode(task.ids[a:e]) for a, e in zip(starts, ends, strict=False)]
        spans = [months(fact)[-2:] for fact in facts]
        verdicts = [task.facts[e] for e in ends]
        head = tokenizer.sp.decode(task.ids[:gap])
        if level == "l2":
            (asked,) = months(head)
            assert verdicts == [1 if a <= asked <= b else 0 if b < asked else 2 for a, b in spans]
            assert [x for x in task.dates if x >= 0] == [(m > asked) - (m < asked) + 1 for span in spans for m in span]
            assert not any(x >= 0 for x in task.named)
            seen["month"] += 1
            seen["several"] += len(golds) > 1
        else:
            word = head.split()[0].lower()
            (known,) = labelled(tokenizer, task, "named", 1)
            assert head.lower().startswith(f"{word} {known.lower()}")
            span = spans[next(i for i, fact in enumerate(facts) if known in fact)]
            right = spans[verdicts.index(1)]
            assert verdicts.count(1) == 1
            if word == "after":
                assert right[0] == min(a for a, b in spans if a >= span[1] and (a, b) != tuple(span))
            else:
                assert right[0] == max(a for a, b in spans if a < span[0] and (a, b) != tuple(span))
            seen[word] += 1
    assert min(seen.values()) > 10, seen


def test_date_tasks_label_what_the_text_says(tokenizer):
    rng, kinds = random.Random(1), set()
    for level in range(len(data.DATE_LEVELS)):
        for _ in range(60):
            task = data.date_task(rng, None, tokenizer, level)
            asked = months(tokenizer.sp.decode(task.ids[: task.ids.index(tokenizer.sentinel(0))]))[0]
            ends = [i for i, x in enumerate(task.dates) if x >= 0]
            assert data.DATE_LEVELS[level][0] <= len(ends) <= data.DATE_LEVELS[level][1]
            for i in ends:
                month = months(tokenizer.sp.decode(task.ids[i - 6 : i + 1]))[-1]
                assert task.dates[i] == (month > asked) - (month < asked) + 1
                kinds.add(task.dates[i])
    assert kinds == {0, 1, 2}


def test_match_tasks_mark_the_same_name_and_no_other(tokenizer):
    rng = random.Random(3)
    names, several = Names(rng, "train"), 0
    for _ in range(200):
        task = data.match_task(rng, names, tokenizer, 5)
        head = tokenizer.sp.decode(task.ids[: task.ids.index(tokenizer.sentinel(0))]).split(" ", 1)[1].removesuffix(",")
        assert labelled(tokenizer, task, "named", 1) == [head]
        others = labelled(tokenizer, task, "named", 0)
        assert len(others) == 4 and head not in others
        several += len(set(others)) == 4
    assert several == 200


def test_copy_tasks_ask_for_the_source(tokenizer):
    rng = random.Random(2)
    names = Names(rng, "train")
    for _ in range(100):
        task = data.copy_task(rng, names, tokenizer, 9)
        assert task.ids[-len(task.target) :] == task.target and len(task.target) >= 1
        assert min(task.target) > data.UNK and max(task.target) < tokenizer.size


def test_the_curriculum_teaches_copying_first_and_grows_what_is_mastered():
    c = tsqa.Curriculum()
    assert c.shares()["l2"] == c.shares()["l3"] == 0 and c.shares()["copy"] >= 0.5
    for _ in range(2000):
        c.update("copy", 1.0)
    assert c.size["copy"] == 30 and c.shares()["l2"] > 0.2 and sum(c.shares().values()) == pytest.approx(1)
    for _ in range(30):
        c.update("l2", 0.5)
    assert c.size["l2"] == 1
    for _ in range(2000):
        c.update("l2", 1.0)
    assert c.size["l2"] == 20 and c.size["l3"] == 2
    assert tsqa.Curriculum(["copy", "dates", "match"]).shares() == {
        "copy": 0,
        "dates": 0,
        "match": 0,
        "l2": 0.5,
        "l3": 0.5,
    }


def test_heads_that_look_back_and_digits_in_order(tokenizer):
    torch.manual_seed(0)
    model = tsqa.T5(tsqa.T5Config())
    before = model.shared.weight.clone()
    tsqa.start_pretraining(model, tokenizer)
    for stack in (model.encoder, model.decoder):
        bias = stack.position_bias(9, 9, "cpu")[0]  # (H, T, S)
        for head, back in enumerate((1, 2, 3)):
            assert (bias[head, 4:].argmax(-1) == torch.arange(4, 9) - back).all()
    moved = model.shared.weight.detach() - before.detach()
    digits = moved[[tokenizer.sp.piece_to_id(str(i)) for i in range(10)]]
    assert digits[9].norm() == pytest.approx(4.5, rel=1e-4)
    for i in range(10):  # evenly along one line
        assert torch.allclose(digits[i], digits[9] * (i - 4.5) / 4.5, atol=1e-5)
        assert torch.allclose(moved[tokenizer.sp.piece_to_id(f"▁{i}")], digits[i], atol=1e-5)
    assert moved.abs().sum(1).count_nonzero() == 20 + 12


def arguments(out, *more):
    return tsqa.parse_args(["--stage", "pretrain", "--out", str(out), "--max-pieces", "512", "--log-every", "1", *more])


@pytest.fixture
def narrow(monkeypatch, tmp_path):
    """The same model, narrow, so that a step takes milliseconds."""
    config = tsqa.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=5, num_decoder_layers=1, num_heads=4)
    monkeypatch.setattr(tsqa, "read_config", lambda _: config)
    monkeypatch.setattr(
        tsqa.Curriculum, "shares", lambda self: {"copy": 0.2, "dates": 0.2, "match": 0.2, "l2": 0.2, "l3": 0.2}
    )


def test_resumed_pretraining_ends_in_the_same_weights(narrow, tmp_path, monkeypatch):
    more = ("--steps", "8", "--save-minutes", "0", "--dtype", "float32")
    tsqa.pretrain(arguments(tmp_path / "whole", *more))
    step, calls = tsqa.pretrain_step, []

    def stop(*args):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(tsqa, "pretrain_step", stop)
    with pytest.raises(KeyboardInterrupt):
        tsqa.pretrain(arguments(tmp_path / "cut", *more))
    monkeypatch.setattr(tsqa, "pretrain_step", step)
    tsqa.pretrain(arguments(tmp_path / "cut", *more, "--resume"))
    assert len(calls) == 6
    whole, cut = (torch.load(tmp_path / n / "trainer.pt", weights_only=True) for n in ("whole", "cut"))
    assert all(torch.equal(whole[part][k], cut[part][k]) for part in ("model", "heads") for k in whole[part])
    assert whole["curriculum"] == cut["curriculum"] and whole["step"] == 8
    files = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "cut")]
    assert files[0] == files[1]


def test_pretraining_learns_and_leaves_the_time_embedding_alone(narrow, tmp_path, monkeypatch):
    rows = []
    step = tsqa.pretrain_step
    monkeypatch.setattr(tsqa, "pretrain_step", lambda *args: rows.append(step(*args)) or rows[-1])
    tsqa.pretrain(arguments(tmp_path / "run", "--steps", "40", "--warmup", "5", "--lr", "5e-3", "--dtype", "float32"))
    losses = [r["loss"] for r in rows]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert {"named", "dates", "facts", "golds"} <= {key for row in rows for key in row}
    model = tsqa.T5.from_pretrained(tmp_path / "run")
    assert not model.time_embedding.weight.any()
