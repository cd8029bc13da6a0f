"""`--stage ask`, what a run directory holds for others, and the help of every script."""

import html.parser
import importlib
import io
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import ppo
import tsqa
from data import Example, TimeTagger, Tokenizer, UserError

QUESTION = "Which team did Ann Lee play for in Mar, 1999?"
CONTEXT = "Ann Lee plays for Čakovec from Jan, 1995 to Feb, 1998. Ann Lee plays for <b>Bo & Co</b> from Mar, 1998 to May, 2001."


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer(ROOT / "assets" / "tiny-t5")


@pytest.fixture(scope="session")
def small(tmp_path_factory, tokenizer):
    """A random model that prefers some answers to others, with arguments of a run that are not the defaults."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("small")
    sizes = {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
    model = tsqa.T5(tsqa.T5Config(**sizes, time_window=2, max_source=200, max_target=6))
    model.time_embedding.weight.data.normal_()
    model.shared.weight.data[data.EOS] *= 4  # some answers end
    model.save_pretrained(directory)
    tokenizer.save(directory)
    (directory / "args.json").write_text(json.dumps({"stage": "sft", "tagger": "rules", "passages": "first"}))
    return directory


def ask(capsys, *flags):
    """What `--stage ask` prints, as lines."""
    tsqa.main(["--stage", "ask", *map(str, flags)])
    return capsys.readouterr().out.splitlines()


def train(small, out, *more):
    base = f"--model {small} --out {out} --n-train 16 --n-dev 2 --epochs 1 --batch-size 8 --warmup 1 --dtype float32"
    return tsqa.main([*base.split(), *more])


# ---- answers and their probabilities


def log_probabilities(model, source, rows):
    """Of answers (K, T) to one source, by the full forward pass: sums over their pieces, EOS included."""
    ended = (rows == data.EOS).cumsum(1) - (rows == data.EOS).long() > 0
    ids, mask, marks = (x if x is None else x.expand(len(rows), -1) for x in source)
    with torch.no_grad():
        logp = model(ids, mask, rows, marks)[0].log_softmax(-1).gather(2, rows[:, :, None])[:, :, 0]
    return logp.masked_fill(ended, 0).sum(1).tolist(), ended


def test_all_beams_are_the_most_probable_answers():
    """Of all answers of one and two pieces, by the full forward pass; as many beams as pieces, so that none is missed."""
    torch.manual_seed(0)
    model = tsqa.T5(tsqa.T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).eval()
    model.shared.weight.data *= 0.5
    ids, mask = torch.randint(2, 12, (3, 7)), torch.arange(7) < torch.tensor([[7], [4], [5]])
    pairs = torch.tensor([[a, b] for a in range(12) for b in range(12) if a != data.EOS] + [[data.EOS, 0]])
    found, logp = model.generate(ids, mask.long(), max_new_tokens=2, num_beams=12, all_beams=True)
    longer, logp2 = model.generate(ids, mask.long(), max_new_tokens=9, num_beams=4, all_beams=True)
    for i in range(3):
        source = (ids[i : i + 1], mask[i : i + 1].long(), None)
        best, order = torch.tensor(log_probabilities(model, source, pairs)[0]).topk(12)
        assert torch.allclose(logp[i], best, atol=1e-5) and torch.equal(found[i], pairs[order])
        want, ended = log_probabilities(model, source, longer[i])
        assert logp2[i].tolist() == pytest.approx(want, abs=1e-5) and not longer[i][ended].any()
    assert (found[:, :, 0] == data.EOS).any()  # the empty answer is among them


def test_answers_are_ranked_by_the_product_over_their_pieces(small, tokenizer):
    model, _, tagger, _ = tsqa.load_run(small)
    found = tsqa.ranked_answers(model, tokenizer, tagger, QUESTION, CONTEXT, num_beams=8)
    texts, probabilities, ended = zip(*found, strict=True)
    assert len(set(texts)) == len(texts) > 1 and list(probabilities) == sorted(probabilities, reverse=True)
    assert True in ended and False in ended
    source = tsqa.collate(tsqa.encode_sources(tokenizer, tagger, [(QUESTION, CONTEXT)], 2, 200), "cpu")
    rows, likeliest = model.generate(*source, 6, 8, all_beams=True)[0][0], {}
    for row, x in zip(rows, log_probabilities(model, source, rows)[0], strict=True):
        likeliest[tokenizer.decode(row)] = max(math.exp(x), likeliest.get(tokenizer.decode(row), 0))
    assert dict(zip(texts, probabilities, strict=True)) == pytest.approx(likeliest, rel=1e-3)
    best = max(tsqa.ranked_answers(model, tokenizer, tagger, QUESTION, CONTEXT), key=lambda row: row[1])
    assert tsqa.answer(model, tokenizer, tagger, QUESTION, CONTEXT) == best[0]


def test_answers_are_as_long_as_the_model_was_trained_for(small, tokenizer, tmp_path, monkeypatch):
    """Found in use: predict stopped at 48 pieces, whatever --max-target said."""
    train(small, tmp_path / "run", "--max-target", "70")
    model, _, tagger, _ = tsqa.load_run(tmp_path / "run")
    assert model.config.max_target == 70
    seen = []
    monkeypatch.setattr(tsqa.T5, "generate", lambda self, *args: seen.append(args[3]) or torch.tensor([[data.EOS]]))
    tsqa.predict(model, tokenizer, tagger, [Example("1", QUESTION, CONTEXT, [""])])
    tsqa.predict(model, tokenizer, tagger, [Example("1", QUESTION, CONTEXT, [""])], max_new_tokens=5)
    assert seen == [70, 5]


# ---- what is printed


def test_what_a_pipe_gets(small, capsys, tokenizer):
    lines = ask(capsys, "--model", small, "--question", QUESTION, "--context", CONTEXT)
    model, _, tagger, _ = tsqa.load_run(small)
    found = tsqa.ranked_answers(model, tokenizer, tagger, QUESTION, CONTEXT, passages="first")
    assert lines[0] == (found[0][0] or "(no answer)")
    assert lines[1].startswith(f"probability: {100 * found[0][1]:.2f} %") and lines[2] == "runners-up:"
    assert len(lines[3:]) == len(found) - 1 + 2
    for line, (text, p, ended) in zip(lines[3:], found[1:], strict=False):
        assert line.startswith(f"  {text or '(no answer)'} ({100 * p:.2f} %")
        assert ended != line.endswith(", cut off at --max-target 6)")
    assert lines[-2] == "times in the question: Mar, 1999"
    assert lines[-1] == "times in the context: Jan, 1995; Feb, 1998; Mar, 1998; May, 2001"
    assert "\033" not in "".join(lines)


def test_colours_are_for_terminals_without_no_color(small, capsys, monkeypatch):
    flags = ("--model", small, "--question", QUESTION, "--context", CONTEXT)
    plain = ask(capsys, *flags)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = ask(capsys, *flags)
    assert lines[-2] == "times in the question: \033[36mMar, 1999\033[0m" and lines[0] == f"\033[1m{plain[0]}\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert ask(capsys, *flags) == plain


def test_an_answer_cannot_steer_the_terminal(small, capsys, monkeypatch):
    monkeypatch.setattr(tsqa, "ranked_answers", lambda *_: [("a\033[2Jb\r\x9b", 0.5, True), ("", 0.25, True)])
    lines = ask(capsys, "--model", small, "--question", QUESTION, "--context", CONTEXT)
    assert lines[:4] == ["a?[2Jb??", "probability: 50.00 %", "runners-up:", "  (no answer) (25.00 %)"]


def test_it_says_how_much_of_the_context_was_dropped(small, capsys, tokenizer):
    long = CONTEXT + " The river is long and wide." * 40
    lines = ask(capsys, "--model", small, "--question", QUESTION, "--context", long)
    whole = len(tokenizer.encode(long)) - 1
    dropped = int(lines[-1].split()[1])
    assert lines[-1] == f"dropped: {dropped} of {whole} pieces of the context; raise --max-source 200"
    ((ids, _),) = tsqa.encode_sources(tokenizer, None, [(QUESTION, long)], 2, 200, "first")
    kept = len(ids) - len(tokenizer.encode(f"question: {QUESTION} context:"))
    assert abs(whole - dropped - kept) <= 1 and 0 < dropped < whole
    assert "dropped" not in ask(capsys, "--model", small, "--question", "Who?", "--context", CONTEXT)[-1]
    assert "dropped" not in ask(
        capsys, "--model", small, "--question", QUESTION, "--context", long, "--max-source", 2000
    )[-1]  # fmt: skip


# ---- flags


@pytest.fixture
def caught(monkeypatch):
    """What `reply` would have been called with: (arguments, model configuration, tagger, context, question)"""
    calls = []
    monkeypatch.setattr(
        tsqa, "reply", lambda args, model, _, *rest: calls.append((vars(args), vars(model.config), *rest))
    )
    return calls


def test_flags_of_ask_take_effect_and_the_run_decides_the_rest(small, caught):
    base = ["--stage", "ask", "--model", str(small), "--question", "Who?", "--context", CONTEXT]
    tsqa.main(base)
    more = "--window 3 --max-source 90 --max-target 9 --passages relevant --no-time --dtype bfloat16".split()
    tsqa.main([*base, *more])
    tsqa.main([*base, "--window", "0"])
    (args, c, tagger, *_), (args2, c2, tagger2, *_), (_, c3, _, *_) = caught
    assert (c["time_window"], c["max_source"], c["max_target"], args["passages"]) == (2, 200, 6, "first")
    assert args["dtype"] == "float32" and tagger is not None
    assert (c2["time_window"], c2["max_source"], c2["max_target"], args2["passages"]) == (3, 90, 9, "relevant")
    assert args2["dtype"] == "bfloat16" and tagger2 is None and c3["time_window"] == 0
    with pytest.raises(UserError, match=r"'no_such_model' is not installed"):
        tsqa.main([*base, "--tagger", "ner", "--spacy-model", "no_such_model"])


def test_no_time_is_said(small, capsys):
    lines = ask(capsys, "--model", small, "--question", QUESTION, "--context", CONTEXT, "--no-time")
    assert lines[-2:] == [f"times in the {x}: not looked for (--no-time)" for x in ("question", "context")]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--stage ask --lr 0.1", "--lr is for --stage sft or pretrain"),
        ("--stage ask --data mini", "--data is for --stage sft;"),
        ("--stage ask --out x", "--out is for"),
        ("--stage ask --paper", "--paper is for"),
        ("--stage pretrain --window 3", "--window is for --stage sft or ask"),
        ("--stage pretrain --no-time", "--no-time is for"),
        ("--question Who?", "--question is for --stage ask; leave it out of --stage sft"),
        ("--steps 5", "--steps is for --stage pretrain"),
    ],
)
def test_flags_without_a_part_are_refused(argv, message):
    with pytest.raises(UserError) as error:
        tsqa.parse_args(argv.split())
    assert message in str(error.value)


def test_stages_have_their_own_defaults():
    assert (tsqa.parse_args([]).lr, tsqa.parse_args([]).out) == (5e-4, "runs/sft")
    args = tsqa.parse_args(["--stage", "pretrain", "--log-every", "7"])
    assert (args.lr, args.warmup, args.log_every, args.out) == (1e-3, 100, 7, "runs/pretrain")
    assert args.skip == [] and args.resume is False


def test_without_a_model_the_fine_tuned_one_is_asked(small, tmp_path, monkeypatch, caught):
    monkeypatch.chdir(tmp_path)
    base = ["--stage", "ask", "--question", "Who?", "--context", "x y"]
    tsqa.main(base)
    shutil.copytree(small, tmp_path / "runs" / "sft")
    tsqa.main(base)
    assert [c["d_model"] for _, c, *_ in caught] == [192, 24]


# ---- the keyboard


def test_questions_from_the_keyboard(small, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text(CONTEXT)
    typed = iter([str(tmp_path / "text.txt"), "Who? " * 300, QUESTION, "", "never read"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    lines = ask(capsys, "--model", small)  # the second line is too long a question: an error, and it goes on
    assert lines[-2] == "times in the question: Mar, 1999" and list(typed) == ["never read"]
    typed = iter([CONTEXT])
    assert ask(capsys, "--model", small, "--question", QUESTION)[0] == lines[0]
    monkeypatch.setattr("builtins.input", lambda prompt: (_ for _ in ()).throw(EOFError))
    assert ask(capsys, "--model", small, "--context", CONTEXT) == []


def test_an_error_at_the_keyboard_is_told(small, monkeypatch, capsys):
    typed = iter(["Who? " * 300, ""])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    tsqa.main(["--stage", "ask", "--model", str(small), "--context", CONTEXT])
    assert "error: the question 'Who?" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_not_sought_on_the_hub(monkeypatch):
    monkeypatch.setattr(tsqa, "download", lambda *args, **how: pytest.fail("asked the hub"))
    with pytest.raises(
        UserError, match=r"no such run \(there is .*\); train it with: python tsqa\.py --stage sft --out runs/none"
    ):
        tsqa.model_dir("runs/none")


# ---- the page


class Page(html.parser.HTMLParser):
    """Parts of a page by displaCy: lists of (text, label or None)."""

    def __init__(self, source):
        super().__init__()
        self.figures, self.label, self.tags = [], None, set()
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if ("class", "entities") in attrs:
            self.figures.append([])
        if tag == "mark":
            self.label = dict(attrs)["title"]

    def handle_endtag(self, tag):
        self.label = None if tag == "mark" else self.label

    def handle_data(self, text):
        if self.figures and text.strip("\n"):
            self.figures[-1].append((text, self.label))


def test_page_shows_times_and_what_the_window_adds(small, tmp_path, capsys, tokenizer):
    file = tmp_path / "page.html"
    lines = ask(capsys, "--model", small, "--question", QUESTION, "--context", CONTEXT, "--html", file)
    source = file.read_text(encoding="utf-8")
    page = Page(source)
    assert "b" not in page.tags and "#ffb000" in source and "#d6e4ff" in source
    answers, key, question, context = page.figures
    assert answers[0][0].startswith(f"answer: {lines[0]} (") and ("time", "time") in key and ("window", "window") in key
    assert "".join(text for text, _ in question) == f"question: {QUESTION}"
    assert "".join(text for text, _ in context) == f"context: {CONTEXT}"
    assert [text for text, label in context if label == "time"] == ["Jan, 1995", "Feb, 1998", "Mar, 1998", "May, 2001"]
    # character for character what the model was given
    ((ids, marks),) = tsqa.encode_sources(tokenizer, TimeTagger(), [(QUESTION, CONTEXT)], 2, 200)
    at = 0
    for figure in (question, context):
        text = "".join(text for text, _ in figure)
        shown = [label for piece, label in figure for _ in piece]
        part, offsets = tokenizer.encode_with_offsets(text)
        assert ids[at : at + len(part) - 1] == part[:-1]
        for mark, (start, end) in zip(marks[at:], offsets[:-1], strict=False):
            assert all((label is not None) == bool(mark) for label in shown[start:end])
        assert {"time", "window", None} == set(shown)
        at += len(part) - 1


def test_page_without_times(small, tmp_path, capsys):
    file = tmp_path / "page.html"
    ask(capsys, "--model", small, "--question", "Who?", "--context", "x\ny", "--html", file, "--no-time")
    assert [[label for _, label in figure] for figure in Page(file.read_text()).figures[2:]] == [[None], [None, None]]


# ---- run directories


def test_model_card(small, tmp_path):
    out = tmp_path / "my run"
    base = f"--model {small} --n-train 8 --n-dev 4 --epochs 2 --batch-size 8 --warmup 2 --dtype float32"
    tsqa.main([*base.split(), "--out", str(out)])
    card = (out / "README.md").read_text()
    best = max((r for r in map(json.loads, (out / "metrics.jsonl").open()) if "dev_em" in r), key=lambda r: r["dev_em"])
    for part in (
        f"EM {best['dev_em']:.1f}, F1 {best['dev_f1']:.1f} on 4 questions, at step {best['step']}",
        "Data: `mini`, setting `mix`, seed 0",
        f"torch {torch.__version__}",
        "MIT",
        f"python tsqa.py --args '{out}'/args.json --out '{out}'-again",
        (out / "args.json").read_text(),
    ):
        assert part in card
    (out / "README.md").write_text("My own words.")
    tsqa.main([*base.split(), "--out", str(out), "--overwrite"])
    assert (out / "README.md").read_text() == "My own words."


def test_card_of_other_data_and_models_names_their_terms(tmp_path, monkeypatch):
    args = tsqa.parse_args(["--model", "google-t5/t5-base", "--data", "tempreason-l2", "--setting", "obqa"])
    tsqa.write_card(tmp_path, args, {"em": 12.34, "f1": 56.78}, 9, 3)
    card = (tmp_path / "README.md").read_text()
    assert "`tempreason-l2`: CC BY-SA 3.0; `google-t5/t5-base`: see there" in card and "EM 12.3, F1 56.8 on 9" in card
    args = ppo.parse_args(["--ckpt", "runs/x", "--data", "mini", "--setting", "mix"])
    monkeypatch.setattr(tsqa, "ranks", lambda: (0, 4))
    tsqa.write_card(tmp_path, args, {"em": 1, "f1": 2}, 9, 3)
    assert "    torchrun --nproc_per_node=4 ppo.py --args" in (tmp_path / "README.md").read_text()


def test_args_json_repeats_the_run(small, tmp_path):
    """Bit for bit, with arguments that are not the defaults, one of them a bool."""
    train(small, tmp_path / "a", *"--seed 5 --lr 0.0123 --dropout 0.1 --no-time --data mini --setting reason".split())
    tsqa.main(["--args", str(tmp_path / "a" / "args.json"), "--out", str(tmp_path / "b")])
    for name in ("model.safetensors", "args.json", "metrics.jsonl", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_args_json_repeats_a_run_of_ppo(small, tmp_path):
    base = f"--ckpt {small} --num-rollouts 4 --samples 2 --batch-size 4 --max-new-tokens 4 --iterations 1 --n-train 8"
    ppo.main([*base.split(), *"--n-dev 2 --value-lr 0.5 --no-time --dtype float32 --out".split(), str(tmp_path / "a")])
    ppo.main(["--args", str(tmp_path / "a" / "args.json"), "--out", str(tmp_path / "b")])
    for name in ("model.safetensors", "args.json", "metrics.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "python ppo.py" in (tmp_path / "a" / "README.md").read_text()


@pytest.mark.parametrize("parser", [tsqa, ppo])
@pytest.mark.parametrize("flags", [[], ["--paper"], ["--seed", "3", "--no-time"]])
def test_every_argument_comes_back(parser, flags, tmp_path):
    told = tsqa.arguments_of(parser.parse_args(flags))
    (tmp_path / "args.json").write_text(json.dumps(told))
    again = ["--args", str(tmp_path / "args.json")]
    assert tsqa.arguments_of(parser.parse_args(again)) == told
    assert tsqa.arguments_of(parser.parse_args([*again, "--lr", "0.5"])) == told | {"lr": 0.5}  # flags beside it win


def test_a_file_of_arguments_that_is_none(tmp_path, capsys):
    with pytest.raises(UserError, match=r"cannot read .*nowhere"):
        tsqa.parse_args(["--args", "nowhere"])
    (tmp_path / "args.json").write_text('{"lr": "fast"}')
    with pytest.raises(SystemExit):
        tsqa.parse_args(["--args", str(tmp_path / "args.json")])
    assert "--lr: expected a number" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["", " "])
def test_an_empty_out_is_one_clear_error(small, tmp_path, monkeypatch, out):
    """Found in use: it wrote into the current directory."""
    monkeypatch.chdir(tmp_path)
    for main, flag in ((tsqa.main, "--model"), (ppo.main, "--ckpt")):
        with pytest.raises(UserError, match="--out is empty"):
            main([flag, str(small), "--out", out])
    assert not list(tmp_path.iterdir())


def test_a_run_loads_in_transformers(small, tmp_path):
    transformers = pytest.importorskip("transformers")
    train(small, tmp_path / "run", "--lr", "1e-2")
    theirs, info = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert set(info["unexpected_keys"]) <= {"time_embedding.weight"} and not info["missing_keys"]
    ours, tokenizer, _, _ = tsqa.load_run(tmp_path / "run")
    ids, mask, _ = tsqa.collate(
        tsqa.encode_sources(tokenizer, None, [(QUESTION, CONTEXT), ("Who?", "x")], 2, 200), "cpu"
    )
    labels = torch.tensor([[5, 6, 7, 1], [8, 1, -100, -100]])
    with torch.no_grad():
        out = theirs.eval()(input_ids=ids, attention_mask=mask, labels=labels)
        logits, loss = ours(ids, mask, labels)
    assert torch.allclose(out.logits, logits, atol=1e-4) and out.loss.item() == pytest.approx(loss.item(), abs=1e-4)
    theirs = theirs.generate(input_ids=ids, attention_mask=mask, max_new_tokens=8)[:, 1:]
    assert torch.equal(theirs, ours.generate(ids, mask, max_new_tokens=8))
    text = f"question: {QUESTION} context: {CONTEXT}"
    assert transformers.T5Tokenizer.from_pretrained(tmp_path / "run")(text).input_ids == tokenizer.encode(text)


# ---- help


@pytest.mark.parametrize("script", ["tsqa", "ppo", "reward", "data"])
def test_help_fits_two_screens(script, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(script).main()
    text = capsys.readouterr().out
    assert stop.value.code == 0 and text.count(f"  python {script}.py") == 3
    lines = text.splitlines()
    assert len(lines) <= 100 and max(map(len, lines)) <= 80
    groups = [line for line in lines if line.endswith(":") and not line.startswith((" ", "examples", "options"))]
    assert len(groups) >= 2 and text.count("(default:") > 1
    assert not re.search(r"\(default[^()]*\) *\(default", " ".join(text.split()))


def test_questions_from_a_pipe(small, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\nWho?\n\nnot asked"))
    tsqa.main(["--stage", "ask", "--model", str(small), "--context", CONTEXT])
    out = capsys.readouterr().out
    assert out.count("probability: ") == 2 and "\nquestion: " not in out and not out.startswith("question: ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who?"))
    with pytest.raises(UserError, match="needs --context"):
        tsqa.main(["--stage", "ask", "--model", str(small)])


def test_a_model_that_was_not_named_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert tsqa.fallback() == "tiny" and "python tsqa.py --stage sft" in capsys.readouterr().err
    Path("runs/sft").mkdir(parents=True)
    Path("runs/sft/model.safetensors").touch()
    assert tsqa.fallback() == "runs/sft" and capsys.readouterr().err == "no --model: using runs/sft\n"


def test_a_tokenizer_is_not_written_over(tmp_path, capsys):
    (tmp_path / "spiece.model").write_bytes(b"of some model")
    with pytest.raises(UserError, match="is there already"):
        data.main(["--train-tokenizer", str(tmp_path)])
    assert (tmp_path / "spiece.model").read_bytes() == b"of some model"


def test_wrong_input_leaves_no_empty_run(small, tmp_path):
    with pytest.raises(UserError, match="nowhere is not a folder"):
        train(small, tmp_path / "run", "--data", "tempreason-l2", "--data-dir", "nowhere")
    assert not (tmp_path / "run").exists()


def test_a_run_says_where_it_goes_on(small, tmp_path, capsys):
    train(small, tmp_path / "run")
    assert "going on" not in capsys.readouterr().err
    train(small, tmp_path / "run", "--resume")
    assert "going on at step 2 of 2" in capsys.readouterr().err
