"""Stage 1: marks, sources, training, resume, the command line. The model itself is tested in test_t5.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import evaluate
import tsqa
from data import Example, TimeTagger, Tokenizer, UserError


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer(ROOT / "assets" / "tiny-t5")


@pytest.fixture(scope="session")
def small(tmp_path_factory, tokenizer):
    """A directory with a random model of 60,000 parameters and the bundled tokenizer."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("small")
    c = tsqa.T5Config(d_model=24, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2)
    tsqa.T5(c).save_pretrained(directory)
    tokenizer.save(directory)
    return directory


def arguments(small, out, *more):
    base = f"--stage sft --model {small} --out {out} --n-train 24 --n-dev 4 --epochs 2 --batch-size 8 --warmup 2"
    return tsqa.parse_args([*base.split(), "--dtype", "float32", "--setting", "reason", "--log-every", "1", *more])


def metrics(out):
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


# ---- equations (1)-(6)


def test_marks_of_a_worked_example():
    #          In    May  ,   19  88  ,  she   left  Rome  for  Bonn
    offsets = [(0, 2), (3, 6), (6, 7), (8, 10), (10, 12), (12, 13), (14, 17), (18, 22), (23, 27), (28, 31), (32, 36)]
    spans = [(3, 12)]  # "May, 1988"
    assert tsqa.time_marks(spans, offsets, 0) == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert tsqa.time_marks(spans, offsets, 2) == [1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert tsqa.time_marks(spans, offsets, 100) == [1] * 11
    assert tsqa.time_marks([], offsets, 5) == [0] * 11
    assert tsqa.time_marks([(7, 8)], offsets, 3) == [0] * 11  # a space: no piece shares a character with it


def test_marks_of_two_windows_and_of_empty_pieces():
    offsets = [(i, i + 1) for i in range(12)] + [(12, 12)]
    assert tsqa.time_marks([(2, 3), (9, 10)], offsets, 1) == [0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0]


def test_windows_of_question_and_context_do_not_leak(tokenizer):
    tagger, window = TimeTagger("rules"), 50
    question, context = "Who led it in Mar, 1999?", "Ann Lee led the house for a long while and then left it."
    (ids, marks), (ids2, marks2) = tsqa.encode_sources(
        tokenizer,
        tagger,
        [(question, context), ("Who led the house then?", "Ann Lee led it in Mar, 1999.")],
        window,
        200,
    )
    border = len(tokenizer.encode(f"question: {question}")) - 1
    assert marks[:border] == [1] * border and not any(marks[border:])
    border = len(tokenizer.encode("question: Who led the house then?")) - 1
    assert not any(marks2[:border]) and marks2[border:-1] == [1] * (len(ids2) - border - 1)
    assert len(marks) == len(ids) and ids.count(data.EOS) == 1 and ids[-1] == data.EOS and marks[-1] == 0
    ((ids, marks),) = tsqa.encode_sources(tokenizer, tagger, [(question, "She left it in May 2004, they say.")], 0, 200)
    assert tokenizer.decode([i for i, mark in zip(ids, marks, strict=True) if mark]) == "Mar, 1999 May 2004"
    word = "x1" * 500  # nothing to choose from
    ((ids, marks),) = tsqa.encode_sources(tokenizer, tagger, [(question, word)], 0, 60)
    assert len(ids) == len(marks) == 60 and ids[-1] == data.EOS and data.EOS not in ids[:-1]


def test_no_tagger_no_marks_and_the_text_is_the_same(tokenizer):
    pair = ("Who led it in Mar, 1999?", "Ann Lee led it from Jan, 1998 to Feb, 2001.")
    ((with_ids, marks),) = tsqa.encode_sources(tokenizer, TimeTagger("rules"), [pair], 2, 200)
    ((ids, none),) = tsqa.encode_sources(tokenizer, None, [pair], 2, 200)
    assert ids == with_ids == tokenizer.encode(f"question: {pair[0]} context: {pair[1]}")
    assert any(marks) and not any(none)


def test_each_text_is_tagged_once(tokenizer):
    class Counting:
        seen = []  # noqa: RUF012

        def pipe(self, texts):
            self.seen += texts
            return [[] for _ in texts]

    pairs = [(f"Which team in {y}?", "Bo plays for A from Jan, 1990 to Jan, 1991.") for y in (1990, 1991, 1990)]
    tagger = Counting()
    assert tsqa.encode_sources(tokenizer, tagger, pairs, 2, 100) == tsqa.encode_sources(
        tokenizer, tagger, pairs, 2, 100
    )
    assert len(Counting.seen) == 3 == len(set(Counting.seen))


def test_long_contexts_keep_the_question_and_the_limit(tokenizer):
    question = "Which team did Ann Lee play for in Mar, 1999?"
    filler = " ".join(f"The river number {i} is long and wide." for i in range(200))
    gold = "Ann Lee played for Acme F.C. from 1998 to 2001."
    ((ids, _),) = tsqa.encode_sources(tokenizer, None, [(question, f"{filler} {gold} {filler}")], 2, 128)
    text = tokenizer.decode(ids)
    assert len(ids) <= 128 and ids.count(data.EOS) == 1
    assert question in text and gold in text
    ((ids, _),) = tsqa.encode_sources(tokenizer, None, [(question, f"{filler} {gold}")], 2, 128, "first")
    assert gold not in tokenizer.decode(ids) and filler[:50] in tokenizer.decode(ids)
    with pytest.raises(UserError, match="--max-source"):
        tsqa.encode_sources(tokenizer, None, [(question * 20, "x")], 2, 128)
    ((ids, _),) = tsqa.encode_sources(tokenizer, None, [("", "")], 2, 128)  # nothing at all is a source too
    assert ids[-1] == data.EOS


def test_time_embedding_starts_as_nothing_and_learns(small, tokenizer):
    model = tsqa.T5.from_pretrained(small)
    pairs = [(ex.question, ex.context) for ex in data.mini("train", n=4)]
    ids, mask, marks = tsqa.collate(tsqa.encode_sources(tokenizer, TimeTagger(), pairs, 2, 512), "cpu")
    labels = torch.tensor([[5, 6, 1]] * 4)
    assert marks.any() and not marks[mask == 0].any()
    plain = model(ids, mask, labels)[0]
    assert torch.equal(model(ids, mask, labels, marks)[0], plain)
    model(ids, mask, labels, marks)[1].backward()
    assert (model.time_embedding.weight.grad.abs().sum(1) > 0).all()  # both rows: marked and unmarked
    torch.optim.AdamW(model.parameters(), lr=0.1).step()
    assert not torch.equal(model(ids, mask, labels, marks)[0], model(ids, mask, labels)[0])


# ---- tokenizer


def test_tokenizer_ends_in_one_eos_and_truncates_before_it(tokenizer):
    for text in ("", "a", "Jan, 1968", "x " * 50, "</s>", "a </s> b"):
        ids = tokenizer.encode(text)
        assert ids.count(data.EOS) == 1 and ids[-1] == data.EOS
        short = tokenizer.encode(text, 3)
        assert len(short) <= 3 and short[-1] == data.EOS and short[:-1] == ids[:-1][:2]


def test_tokenizer_round_trip_of_any_text(tokenizer):
    rng = torch.Generator().manual_seed(0)
    texts = [
        " a",
        "a ",
        "  two  spaces ",
        "tab\there",
        "line\nbreak",
        "Čakovec — 1949–66",
        "日本語 🎉",
        "\u0000\u200b\u202e",
        "{}\\",
    ]
    texts += ["".join(map(chr, torch.randint(1, 0x2580, (20,), generator=rng).tolist())) for _ in range(300)]
    for text in texts:
        assert tokenizer.sp.decode(tokenizer.encode(text)[:-1]) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text.strip()


def test_tokenizer_offsets_are_characters(tokenizer):
    for text in ("Čakovec, Jan, 1968", "\tÉmile  from Mar, 987", "  leading", "日本 in 2004", ""):
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text) and len(ids) == len(offsets)
        assert offsets[-1] == (len(text), len(text))
        assert all(0 <= a <= b <= len(text) for a, b in offsets)
        for i, (a, b) in zip(ids, offsets, strict=True):
            piece = tokenizer.sp.id_to_piece(i).replace("▁", " ").strip()
            if i != data.EOS and not tokenizer.sp.is_byte(i):
                assert text[a:b].strip() == piece
    ids, offsets = tokenizer.encode_with_offsets("Ærø Jan, 1968")
    covered = {c for a, b in offsets for c in range(a, b)}
    assert covered >= set(range(len("Ærø Jan, 1968"))) - {3, 8}


def test_tokenizer_sentinels_and_decoding(tokenizer):
    assert tokenizer.sentinel(0) == tokenizer.size + 99 and tokenizer.sentinel(99) == tokenizer.size
    real = Tokenizer.__new__(Tokenizer)
    real.size = 32000
    assert real.sentinel(0) == 32099 and real.sentinel(7) == 32092
    ids = tokenizer.encode("Acme F.C.")
    assert tokenizer.decode([*ids, *tokenizer.encode("more")]) == "Acme F.C."
    assert tokenizer.decode([0, *ids[:-1], 0, tokenizer.sentinel(0), tokenizer.size + 120, 2]) == "Acme F.C."
    assert tokenizer.decode([]) == "" == tokenizer.decode([data.EOS, 5])


def test_tokenizer_of_a_wrong_directory(tmp_path):
    with pytest.raises(UserError, match=r"spiece\.model is missing"):
        Tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"junk")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Tokenizer(tmp_path)


# ---- training


def test_fine_tuning_learns_and_writes_a_run(small, tmp_path, capsys):
    args = arguments(small, tmp_path / "run", "--epochs", "12", "--lr", "2e-2", "--batch-size", "4")
    tsqa.sft(args)
    rows = metrics(args.out)
    losses = [r["loss"] for r in rows if "dev_em" not in r]
    assert losses[-1] < 0.6 * losses[0]
    assert [r["step"] for r in rows if "dev_em" in r] == [6 * e for e in range(1, 13)]
    assert {"config.json", "model.safetensors", "spiece.model", "args.json", "trainer.pt"} <= {
        p.name for p in Path(args.out).iterdir()
    }
    model, tokenizer, tagger, told = tsqa.load_run(args.out)
    assert model.config.time_window == 10 and told["seed"] == 0 and tagger is not None
    assert isinstance(
        tsqa.answer(model, tokenizer, tagger, "Who?", "Ann Lee plays for Acme from Jan, 1990 to Jan, 1991."), str
    )
    assert "evaluate.py --ckpt" in capsys.readouterr().out


def test_a_step_does_not_depend_on_its_chunks(small, tokenizer):
    """The gradient of a step does not depend on how it is cut into chunks, and is that of the mean over pieces."""
    rows = tsqa.encode_sources(tokenizer, None, [(ex.question, ex.context) for ex in data.mini("train", n=7)], 2, 512)
    targets = [
        tokenizer.encode(text)
        for text in ("a", "bb cc dd", "Acme F.C.", "x", "y z", "a long answer of many pieces", "")
    ]
    args, weights = arguments(small, "unused"), []
    for chunks in ([list(range(7))], [[0, 1], [2, 3, 4], [5], [6]]):
        model = tsqa.T5.from_pretrained(small)
        loss = tsqa.train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), rows, targets, chunks, args)
        weights.append((loss, model.state_dict()))
    (loss1, a), (loss2, b) = weights
    assert loss1 == pytest.approx(loss2, rel=1e-5)
    assert all(torch.allclose(a[k], b[k], atol=1e-5) for k in a)
    model = tsqa.T5.from_pretrained(small)
    ids, mask, marks = tsqa.collate(rows, "cpu")
    assert loss1 == pytest.approx(model(ids, mask, data.pad(targets, -100)[0], marks)[1].item(), rel=1e-5)


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_resume_gives_the_weights_of_the_uninterrupted_run(small, tmp_path, monkeypatch, stop):
    """3 steps an epoch: stopped inside an epoch, at its end, and in the next one; with dropout, so that its state counts."""
    more = ("--dropout", "0.1", "--save-minutes", "0")
    tsqa.sft(arguments(small, tmp_path / "whole", *more))

    class Stop(Exception):
        pass

    save, steps = tsqa.save_trainer, []

    def save_then_stop(out, model, optimizer, step, best):
        save(out, model, optimizer, step, best)
        steps.append(step)
        if step == stop:
            raise Stop

    monkeypatch.setattr(tsqa, "save_trainer", save_then_stop)
    with pytest.raises(Stop):
        tsqa.sft(arguments(small, tmp_path / "cut", *more))
    monkeypatch.setattr(tsqa, "save_trainer", save)
    tsqa.sft(arguments(small, tmp_path / "cut", *more, "--resume"))
    whole, cut = (torch.load(tmp_path / name / "trainer.pt", weights_only=True) for name in ("whole", "cut"))
    assert all(torch.equal(whole["model"][k], cut["model"][k]) for k in whole["model"])
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")
    for name in ("model.safetensors", "config.json", "spiece.model"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_same_seed_same_run_other_seed_other_run(small, tmp_path):
    runs = [
        metrics(tmp_path / n)
        for n, seed in (("a", "1"), ("b", "1"), ("c", "2"))
        if not tsqa.sft(arguments(small, tmp_path / n, "--seed", seed))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_best_epoch_is_kept(small, tmp_path, monkeypatch):
    scores = iter([20.0, 60.0, 40.0])
    seen = []

    def fake(model, *_):
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return {"em": next(scores), "f1": 0.0, "empty": 0.0}

    monkeypatch.setattr(tsqa, "evaluate_dev", fake)
    tsqa.sft(arguments(small, tmp_path / "run", "--epochs", "3"))
    kept = tsqa.T5.from_pretrained(tmp_path / "run").state_dict()
    assert all(torch.equal(kept[k], seen[1][k]) for k in kept)
    assert not torch.equal(seen[1]["shared.weight"], seen[2]["shared.weight"])


def test_several_golds_are_all_trained_on(small, tmp_path, monkeypatch):
    targets = set()
    step = tsqa.train_step

    def spy(model, optimizer, rows, t, chunks, args):
        targets.update(tuple(t[i]) for chunk in chunks for i in chunk)
        return step(model, optimizer, rows, t, chunks, args)

    two = [Example("1", "Who?", "A and B.", ["A", "B"])]
    monkeypatch.setattr(tsqa, "load_bench", lambda *_: two)
    monkeypatch.setattr(tsqa, "train_step", spy)
    tsqa.sft(arguments(small, tmp_path / "run", "--epochs", "8"))
    assert len(targets) == 2


def test_a_loss_that_is_no_number_stops_the_run(small, tmp_path, monkeypatch):
    monkeypatch.setattr(tsqa, "train_step", lambda *_: float("nan"))
    with pytest.raises(UserError, match=r"nan at step 1 .*mini-train"):
        tsqa.sft(arguments(small, tmp_path / "run"))


def test_another_run_is_not_overwritten(small, tmp_path):
    tsqa.sft(arguments(small, tmp_path / "run"))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"another run \(seed 0 -> 3\).*--overwrite"):
        tsqa.sft(arguments(small, tmp_path / "run", "--seed", "3"))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    tsqa.sft(arguments(small, tmp_path / "run", "--seed", "3", "--overwrite"))
    with pytest.raises(UserError, match="start the run without --resume"):
        tsqa.sft(arguments(small, tmp_path / "other", "--resume"))
    with pytest.raises(UserError, match="holds this run already"):  # nor is it begun again unasked
        tsqa.sft(arguments(small, tmp_path / "run", "--seed", "3"))
    with pytest.raises(UserError, match="give one of them"):
        tsqa.sft(arguments(small, tmp_path / "run", "--seed", "3", "--resume", "--overwrite"))


def test_bad_input_destroys_nothing(small, tmp_path):
    """Found by attack: a failed --overwrite used to leave the old weights beside new arguments."""
    tsqa.sft(arguments(small, tmp_path / "run"))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    for wrong in (("--data", "tempreason-l2", "--data-dir", str(tmp_path)), ("--max-source", "33")):
        with pytest.raises(UserError):
            tsqa.sft(arguments(small, tmp_path / "run", "--overwrite", *wrong))
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    with pytest.raises(UserError):
        tsqa.sft(arguments(small, tmp_path / "new", "--max-source", "33"))
    tsqa.sft(arguments(small, tmp_path / "new"))  # a run that never began does not stand in the way


def test_resume_survives_half_a_line_of_metrics(small, tmp_path):
    tsqa.sft(arguments(small, tmp_path / "run"))
    whole = metrics(tmp_path / "run")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as f:
        f.write('{"step": 6, "lo')
    tsqa.sft(arguments(small, tmp_path / "run", "--resume"))
    assert metrics(tmp_path / "run") == whole


def test_tokenizer_of_another_model_is_refused(tmp_path, tokenizer):
    tsqa.T5(tsqa.T5Config(vocab_size=500, d_model=8, d_ff=8, num_layers=1, num_decoder_layers=1)).save_pretrained(
        tmp_path
    )
    tokenizer.save(tmp_path)
    with pytest.raises(UserError, match="2048 pieces"):
        tsqa.load_run(tmp_path)


def test_context_is_a_text_or_a_file(tmp_path):
    long = "Ann Lee plays for Bo. " * 30
    assert tsqa.read_context(long) == long  # too long for a file name
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfAnn\n Lee")
    assert tsqa.read_context(str(tmp_path / "a.txt")) == "Ann Lee"
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    for wrong in (tmp_path / "b.bin", tmp_path / "absent.txt"):
        with pytest.raises(UserError, match="--context"):
            tsqa.read_context(str(wrong))


def test_no_time_trains_no_time_embedding(small, tmp_path):
    tsqa.sft(arguments(small, tmp_path / "run", "--no-time", "--lr", "1e-2"))
    assert not tsqa.T5.from_pretrained(tmp_path / "run").time_embedding.weight.any()
    tsqa.sft(arguments(small, tmp_path / "with", "--lr", "1e-2"))
    assert tsqa.T5.from_pretrained(tmp_path / "with").time_embedding.weight.any()


def test_resume_never_takes_the_state_of_another_run(small, tmp_path, monkeypatch):
    tsqa.sft(arguments(small, tmp_path / "run"))
    step = tsqa.train_step

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tsqa, "train_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tsqa.sft(arguments(small, tmp_path / "run", "--seed", "7", "--overwrite"))
    monkeypatch.setattr(tsqa, "train_step", step)
    tsqa.sft(arguments(small, tmp_path / "run", "--seed", "7", "--resume"))
    tsqa.sft(arguments(small, tmp_path / "fresh", "--seed", "7"))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "fresh")


def test_passages_of_the_run_are_used_for_its_answers_too(small, monkeypatch):
    seen = []
    monkeypatch.setattr(tsqa, "select_passages", lambda q, c, room, count, keep: seen.append(keep) or c[:20])
    model, tokenizer, tagger, _ = tsqa.load_run(small)
    args = arguments(small, "unused", "--passages", "first")
    tsqa.evaluate_dev(model, tokenizer, tagger, list(data.mini("dev", n=2)), args)
    assert seen == ["first", "first"]


def test_schedule():
    assert [tsqa.schedule(s, 10, 4) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert tsqa.schedule(4, 10, 4) == 1.0 and tsqa.schedule(9, 10, 4) == pytest.approx(1 / 6)
    assert tsqa.schedule(0, 10, 0) == 1.0


def test_predict_keeps_the_order_and_the_mode(small):
    model, tokenizer, tagger, _ = tsqa.load_run(small)
    examples = list(data.mini("test", n=9))
    model.train()
    together = tsqa.predict(model, tokenizer, tagger, examples, batch_size=4)
    assert model.training
    assert together == [tsqa.predict(model, tokenizer, tagger, [ex])[0] for ex in examples]


# ---- command line


def tsqa_cli(*args, **kwargs):
    return subprocess.run(
        [sys.executable, ROOT / "tsqa.py", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **kwargs,
    )


def test_cli_trains_then_scores_then_answers(small, tmp_path):
    out = tmp_path / "run"
    done = tsqa_cli("--model", small, "--out", out, "--n-train", 16, "--n-dev", 4, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    assert "best dev EM" in done.stdout and "epoch 1/1" in done.stderr
    (tmp_path / "text.txt").write_text("Ann Lee plays for Acme from Jan, 1990\nto Jan, 1991.")
    done = tsqa_cli("--stage", "ask", "--model", out, "--question", "Who?", "--context", tmp_path / "text.txt")
    assert done.returncode == 0 and done.stdout.endswith("\n"), done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--window", "-1"], "from 0"),
        (["--lr", "nan"], "expected a number"),
        (["--epochs", "0"], "from 1"),
        (["--data", "squad"], "invalid choice"),
        (["--model", "no/such/directory/here"], "no such directory"),
        (["--stage", "ask"], "needs --context"),
        (["--stage", "ask", "--question", " ", "--context", "x y"], "--question is blank"),
        (["--data", "tempreason-l2", "--data-dir", "nowhere", "--model", "SMALL"], "nowhere"),
        (["--max-source", "33", "--model", "SMALL", "--n-train", "2"], "--max-source"),
        (["--device", "tpu"], "--device"),
        (["--context", "x y"], "--context is for --stage ask"),
    ],
)
def test_cli_wrong_use_is_one_sentence_and_status_2(small, tmp_path, args, message):
    args = [str(small) if a == "SMALL" else a for a in args]
    done = tsqa_cli(*args, *([] if "ask" in args else ["--out", tmp_path / "run"]))
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_cli_names_the_line_of_a_bad_row_and_overwrites_nothing(small, tmp_path):
    good = {"id": "1", "question": "Which team did Bo Ra play for in Jan, 1990?", "text_answers": {"text": ["Acme"]}}
    good |= {"fact_context": "Bo Ra plays for Acme from Jan, 1990 to Jan, 1991.", "context": "x"}
    lines = [json.dumps(good | {"id": str(i)}) for i in range(3)] + ['{"id": "9", "question": 5}']
    (tmp_path / "train_l2.json").write_text("\n".join(lines))
    done = tsqa_cli("--model", small, "--data", "tempreason-l2", "--data-dir", tmp_path, "--out", tmp_path / "run")
    assert done.returncode == 2 and "train_l2.json, line 4" in done.stderr and "Traceback" not in done.stderr


def test_paper_sets_the_papers_numbers_and_flags_win():
    args = tsqa.parse_args(["--paper"])
    assert (args.lr, args.batch_size, args.epochs, args.window, args.tagger) == (5e-6, 8, 6, 10, "ner")
    assert tsqa.parse_args(["--paper", "--window", "3"]).window == 3


def test_rule_proves_the_reader(tmp_path):
    """`rule` on the generated facts, read back through the official format."""
    rows = []
    for ex in data.mini("test", "mix", "reason", 200):
        facts = ". \n ".join(ex.context.removesuffix(".").split(". ")) if "F.C" not in ex.context else None
        if facts and all("." not in f.object + f.subject for f in ex.facts):
            rows.append(
                {"id": ex.id, "question": ex.question, "text_answers": {"text": ex.answers}, "fact_context": facts}
            )
    (tmp_path / "test_l2.json").write_text("\n".join(map(json.dumps, rows)))
    read = list(data.read_tempreason(tmp_path / "test_l2.json", "reason"))
    assert len(read) > 50
    assert all(evaluate.exact_match(evaluate.rule_answer(ex), ex.answers) for ex in read)
