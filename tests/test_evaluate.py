"""EM, F1, bootstrap, the rule, predictions files, the table and the command line of evaluate.py."""

import json
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import data
import evaluate as ev
from data import Example, Fact, UserError, read_tempreason, run

SHARED = ROOT.parent / "shared" / "data" / "tempreason"


def example(id, question="Who?", answers=("Ada Varn",), facts=(), time=None):
    return Example(id, question, "", list(answers), list(facts), time, [], [])


def facts(*spans):
    return [Fact("Ola Brenn", "P54", name, start * 12, end * 12) for name, start, end in spans]


# EM and F1


@pytest.mark.parametrize(
    "prediction, golds, em, f1",
    [
        ("The Varn F.C.", ["varn fc"], 1, 1),  # case, article, punctuation without a space in its place
        ("  a Varn\tcity ", ["Varn City"], 1, 1),
        ("Varn-City", ["Varn City"], 0, 0),  # a hyphen joins: VarnCity
        ("Theodor An", ["odor"], 0, 0),  # articles only as whole words
        ("Varn City", ["Brenn", "Varn City"], 1, 1),  # best of several
        ("Varn", ["Brenn City Hall", "Varn City"], 0, 2 / 3),
        ("Varn Varn", ["Varn"], 0, 2 / 3),  # bags, not sets
        ("Varn Varn", ["Varn Varn Brenn"], 0, 0.8),
        ("Łódź KS", ["łódź ks"], 1, 1),
        ("München", ["Munchen"], 0, 0),  # accents are kept
        ("北京 市", ["北京"], 0, 2 / 3),
        ("Varn", [""], 0, 0),
        ("", ["Varn", "Brenn"], 0, 0),
        ("", ["Varn", ""], 1, 1),
        ("The.", [""], 1, 1),  # empty after normalisation
    ],
)
def test_known_scores(prediction, golds, em, f1):
    assert ev.exact_match(prediction, golds) == em
    assert ev.f1(prediction, golds) == pytest.approx(f1)


def test_empty_answer_in_both_conventions():
    assert ev.exact_match("", [""]) == 1.0
    assert ev.f1("", [""]) == 1.0
    assert ev.f1("", [""], v1=True) == 0.0
    assert ev.f1("Varn", ["Varn", ""], v1=True) == 1.0


@pytest.mark.parametrize("score", [ev.exact_match, ev.f1])
def test_wrong_types_are_named(score):
    with pytest.raises(TypeError, match="golds must be a list of str, got 'Varn'"):
        score("Varn", "Varn")
    with pytest.raises(TypeError, match="golds must be a list of str"):
        score("Varn", ["Varn", None])
    with pytest.raises(TypeError, match="prediction must be a str, got NoneType"):
        score(None, ["Varn"])
    with pytest.raises(ValueError, match="must not be empty"):
        score("Varn", [])


def test_properties_on_random_strings():
    rng = random.Random(0)
    words = [
        "the",
        "a",
        "An",
        "Varn",
        "varn,",
        "Brenn",
        "F.C.",
        "1950",
        "É",
        "ß",
        "—",
        "!",
        "",
        "北京",
        "\u00a0",
        "x\n",
    ]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 4))) for _ in range(400)]
    for p, g, other in zip(texts, texts[1:], texts[2:]):
        score = ev.f1(p, [g])
        assert 0.0 <= score <= 1.0 and score == ev.f1(g, [p])
        assert ev.exact_match(p, [g]) <= score and ev.f1(p, [p]) == 1.0
        assert ev.f1(p, [g, other]) == max(score, ev.f1(p, [other])) == ev.f1(p, [other, g])
        if ev.normalize(p) or ev.normalize(g):
            assert ev.f1(p, [g], v1=True) == score
        assert ev.normalize(ev.normalize(p)) == ev.normalize(p)


# bootstrap


def test_interval_covers_the_truth_about_95_times_in_100():
    rng, hits = np.random.default_rng(0), 0
    for i in range(200):
        lo, hi = ev.bootstrap_interval(rng.random(100) < 0.7, n_boot=1000, seed=i)
        hits += lo <= 0.7 <= hi
    assert 180 <= hits <= 198  # 95 % of 200 is 190, standard deviation 3


def test_interval_agrees_with_the_normal_one():
    scores = np.random.default_rng(1).normal(5.0, 2.0, 400)
    half = 1.96 * scores.std() / 20
    assert ev.bootstrap_interval(scores) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.02)
    assert ev.bootstrap_interval(scores) == ev.bootstrap_interval(scores) != ev.bootstrap_interval(scores, seed=1)
    # all alike: the exact interval; 7 of 7 are right with probability .025 where the true share is its lower end
    low, high = ev.bootstrap_interval([1.0] * 7)
    assert high == 1.0 and low**7 == pytest.approx(0.025) and ev.bootstrap_interval([0.0] * 7) == (0.0, 1 - low)
    assert ev.bootstrap_interval([0.5] * 7) == (0.5, 0.5)


def test_every_question_is_drawn_as_often():
    for place in range(3):
        means = ev.resampled_means(np.arange(3) == place, 20000, 0)
        assert abs(means.mean() - 1 / 3) < 0.01 and set(np.round(means * 3).astype(int)) == {0, 1, 2, 3}


def test_chunks_keep_the_number_of_resamples():
    scores = np.arange(2**21) % 2  # two resamples a chunk
    assert ev.resampled_means(scores, 3, 0).shape == (3,)
    assert len(set(ev.resampled_means(scores, 3, 0))) == 3


@pytest.mark.parametrize("scores", [[], [[1.0, 0.0]], [float("nan")]])
def test_interval_refuses_what_has_no_mean(scores):
    with pytest.raises(ValueError, match="non-empty list of finite numbers"):
        ev.bootstrap_interval(scores)


def test_paired_bootstrap_sign_pairing_and_ties():
    rng = np.random.default_rng(0)
    b = (rng.random(400) < 0.5).astype(float)
    a = b.copy()
    a[np.flatnonzero(b == 0)[:12]] = 1.0  # 12 questions better, none worse
    diff, lo, hi, p = ev.paired_bootstrap(a, b)
    assert diff == pytest.approx(0.03) and 0 < lo < 0.03 < hi and p < 0.01
    assert ev.paired_bootstrap(b, a)[0] == -diff and ev.paired_bootstrap(b, a)[3] == pytest.approx(p, abs=0.01)
    assert ev.paired_bootstrap(a, rng.permutation(b))[3] > 0.05  # the same two means, unpaired, say nothing
    assert ev.paired_bootstrap(b, b) == (0.0, 0.0, 0.0, 1.0)
    assert ev.paired_bootstrap([1.0] * 9, [0.0] * 9, n_boot=999) == (1.0, 1.0, 1.0, 0.001)  # p is never 0
    with pytest.raises(ValueError, match="same questions"):
        ev.paired_bootstrap([1.0, 0.0], [1.0])


def test_paired_p_rejects_about_5_in_100_equal_systems():
    rng = np.random.default_rng(3)
    ps = [ev.paired_bootstrap(rng.random(80) < 0.6, rng.random(80) < 0.6, 500, i)[3] for i in range(200)]
    assert 2 <= sum(p < 0.05 for p in ps) <= 20  # 10 expected
    assert 0.4 < np.mean(ps) < 0.65


# the rule

CAREER = facts(("Varn FC", 1950, 1955), ("Day Before United", 1955, 1960), ("Brenn", 1960, 1960), ("Odell", 1960, 1970))


@pytest.mark.parametrize(
    "question, answer",
    [
        ("Which team did Ola Brenn play for in May, 1952?", "Varn FC"),
        ("Which team did Ola Brenn play for in Jan, 1955?", "Varn FC"),  # both ends count; the first one wins
        ("Which team did Ola Brenn play for in Feb, 1955?", "Day Before United"),
        ("Which team did Ola Brenn play for in Jun, 1980?", ""),
        ("Which team did Ola Brenn play for after Varn FC?", "Day Before United"),
        ("Which team did Ola Brenn play for after Day Before United?", "Odell"),  # Brenn has no length
        ("Which team did Ola Brenn play for before Odell?", "Brenn"),
        ("Which team did Ola Brenn play for before Day Before United?", "Varn FC"),
        ("Which team did Ola Brenn play for before Varn FC?", ""),
        ("Which team did Ola Brenn play for after Nobody?", ""),
        ("Where was Ola Brenn?", ""),
    ],
)
def test_rule(question, answer):
    for seed in range(5):  # the order of the facts carries nothing
        shuffled = random.Random(seed).sample(CAREER, len(CAREER))
        assert ev.rule_answer(example("x", question, ["Odell"], shuffled, (0, 0))) == answer


def test_rule_without_facts_says_nothing():
    assert ev.rule_answer(example("x", "Which team did Ola Brenn play for in May, 1952?")) == ""


@pytest.mark.parametrize(
    "asked, answer",
    [
        ("after Mayor", "Judge"),  # Member overlaps it
        ("before Judge", "Member"),  # Mayor began earlier, although it ended later
        ("after Member", "Judge"),
        ("after Judge", "Envoy"),  # nothing but overlap: by start
        ("before Member", "Mayor"),
    ],
)
def test_rule_on_overlapping_facts(asked, answer):
    jobs = facts(("Mayor", 1950, 1964), ("Member", 1955, 1960), ("Judge", 1965, 1970), ("Envoy", 1969, 1971))
    assert ev.rule_answer(example("x", f"Which position did Ola Brenn hold {asked}?", facts=jobs)) == answer


def test_rule_takes_the_longest_name_that_fits():
    jobs = facts(("Head after Mayor", 1930, 1940), ("Clerk", 1940, 1950), ("Mayor", 1950, 1960), ("Judge", 1960, 1970))
    question = "Which position did Ola Brenn hold after Head after Mayor?"
    assert ev.rule_answer(example("x", question, facts=jobs)) == "Clerk"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no official files beside the repository")
@pytest.mark.parametrize("level, at_least", [("l2", 0.995), ("l3", 0.98)])
def test_rule_on_official_rows(level, at_least):
    examples = list(read_tempreason(SHARED / f"test_{level}.json.gz", "reason"))
    assert np.mean([ev.exact_match(ev.rule_answer(ex), ex.answers) for ex in examples]) >= at_least


# predictions files

IDS = ["q1", "q2", "q3"]


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)


def row(id, prediction="Varn"):
    return {"id": id, "prediction": prediction}


def test_predictions_come_back_in_the_order_of_the_bench(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + lines(row("q3", "c\u2028c"), "", row("q1", "ä") | {"em": 1}, row("q2", "")).encode()
    )
    assert ev.read_predictions(path, IDS) == ["ä", "", "c\u2028c"]


@pytest.mark.parametrize(
    "text, message",
    [
        (lines(row("q1"), row("q3")), 'ids missing: "q2"'),
        (lines(*map(row, IDS), row("q2")), 'ids more than once in it: "q2"'),
        (
            lines(*map(row, IDS + ["y1", "y2", "y3", "y4"])),
            'ids in it but not in the bench: "y1", "y2", "y3" and 1 more',
        ),
        ("", 'ids missing: "q1", "q2", "q3";'),
        (lines(row("q1"), "{'id': 'q2'}"), "line 2: not valid JSON"),
        (lines("[" * 100000), "line 1: not valid JSON"),
        (lines(row("q1"), ["q2", "Varn"]), "line 2: expected an object"),
        (lines({"id": "q1"}), 'line 1: "prediction" must be a string, it is missing'),
        (lines(row("q1", ["Varn"])), "line 1: \"prediction\" must be a string, got ['Varn']"),
        (lines(row(1)), 'line 1: "id" must be a string, got 1'),
        (lines(row("q1", None)), 'line 1: "prediction" must be a string, got None'),
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_bad_predictions_files_are_explained(tmp_path, text, message):
    path = tmp_path / "p.jsonl"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as e:
        ev.read_predictions(path, IDS)
    assert message in str(e.value) and str(e.value).startswith(str(path)) and "\n" not in str(e.value)


# table and command line

BENCH = [
    example(i, "Which team did Ola Brenn play for after Varn FC?", ["Odell"], CAREER[:1] + CAREER[3:]) for i in IDS
]


def columns(text):
    """[{column: cell}] of the Markdown table in a text"""
    cells = [[c.strip() for c in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(cells[0], line, strict=True)) for line in cells[2:]]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """main() on three questions, with two runs that answer one and three of them"""
    asked = []

    def predict(model, tokenizer, tagger, examples, num_beams=1, batch_size=32, max_new_tokens=0, passages=""):
        asked.append((model, num_beams, batch_size))
        return ["Odell" if i == 0 or model.endswith("good") else "Varn FC" for i in range(len(examples))]

    fake = SimpleNamespace(load_run=lambda name, device=None: (str(name), None, None, {}), predict=predict)
    monkeypatch.setitem(sys.modules, "tsqa", fake)
    monkeypatch.setattr(ev.data, "mini", lambda split, level, setting, n, seed, scale: iter(BENCH[:n]))
    monkeypatch.chdir(tmp_path)
    for name in "poor", "good":
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "args.json").write_text("{}")
    return asked


def test_table_is_aligned_markdown():
    text = ev.table([{"system": "a|b", "n": 5}, {"system": "rule", "n": 12345, "p": "0.5"}])
    assert text.splitlines() == [
        "| system |     n |   p |",
        "| ------ | ----: | --: |",
        "| a\\|b   |     5 |   - |",
        "| rule   | 12345 | 0.5 |",
    ]


def test_one_checkpoint(bench, capsys):
    ev.main(["--ckpt", "runs/poor", "--beams", "3", "--batch-size", "2"])
    poor, rule = columns(capsys.readouterr().out)
    assert poor == {
        "system": "runs/poor",
        "bench": "mini",
        "questions": "all",
        "n": "3",
        "EM": "33.3",
        "95 %": "0.0 to 100.0",
        "F1": "33.3",
    }
    assert rule["system"] == "rule" and rule["EM"] == "100.0" and list(rule) == list(poor)
    assert bench == [("runs/poor", 3, 2)]
    saved = [json.loads(line) for line in Path("runs/poor/predictions.jsonl").read_text().splitlines()]
    assert [r["em"] for r in saved] == [r["f1"] for r in saved] == [1.0, 0.0, 0.0]
    assert saved[1] == row("q2", "Varn FC") | {
        "question": BENCH[1].question,
        "answers": ["Odell"],
        "em": 0.0,
        "f1": 0.0,
    }
    ev.main(["--predictions", "runs/poor/predictions.jsonl"])  # what was written can be scored again, without a model
    again = columns(capsys.readouterr().out)[0]
    assert again == poor | {"system": "predictions"} and len(bench) == 1


def test_two_checkpoints_and_a_file_are_compared_with_the_first(bench, capsys, tmp_path):
    Path("mine.jsonl").write_text(lines(*map(row, IDS)))
    ev.main(["--ckpt", "runs/poor", "runs/good", "--predictions", "mine.jsonl", "--out", "out"])
    poor, good, mine, rule = columns(capsys.readouterr().out)
    assert poor["EM - runs/poor"] == poor["p"] == rule["p"] == "-"
    assert good["EM - runs/poor"].startswith("+66.7 (") and 0 < float(good["p"]) < 1
    assert mine["system"] == "predictions" and mine["EM - runs/poor"].startswith("-33.3 (")
    assert Path("out/runs-poor/predictions.jsonl").is_file() and Path("out/runs-good/predictions.jsonl").is_file()
    assert not Path("runs/poor/predictions.jsonl").exists()


def test_timeqa_shows_both_conventions_and_no_rule(bench, capsys, monkeypatch):
    rows = [example("a"), example("b", answers=[""])]
    monkeypatch.setattr(ev, "load_bench", lambda *a: rows)
    Path("mine.jsonl").write_text(lines(row("a", "Varn"), row("b", "")))
    ev.main(["--bench", "timeqa-easy", "--predictions", "mine.jsonl", "--by"])
    mine, nothing = columns(capsys.readouterr().out)
    assert (mine["EM"], mine["F1"], mine["F1 v1.1"]) == ("50.0", "83.3", "33.3")
    assert (nothing["system"], nothing["EM"], nothing["F1"], nothing["F1 v1.1"]) == ("no answer", "50.0", "50.0", "0.0")


def test_squad_v1_flag(bench, capsys):
    ev.main(["--ckpt", "runs/poor", "--squad-v1"])
    assert list(columns(capsys.readouterr().out)[0])[-1] == "F1 v1.1"


def test_several_benches_load_a_model_once(bench, capsys, monkeypatch):
    monkeypatch.setattr(ev, "load_bench", lambda *a: BENCH)
    ev.main(["--bench", "mini", "tempreason-l3", "mini", "--ckpt", "runs/poor", "--setting", "obqa"])
    assert [(r["system"], r["bench"]) for r in columns(capsys.readouterr().out)] == [
        ("runs/poor", "mini"),
        ("runs/poor", "tempreason-l3"),
    ]
    assert sorted(p.name for p in Path("runs/poor").glob("*.jsonl")) == [
        "predictions-mini.jsonl",
        "predictions-tempreason-l3.jsonl",
    ]


def test_no_flags(bench, capsys):
    ev.main([])
    out, err = capsys.readouterr()
    assert out.startswith("| system") and columns(out)[0]["system"] == "tiny"
    assert "using the bundled model" in err and "give --out" in err and not Path("tiny").exists()
    Path("runs/good").rename("runs/sft")
    ev.main([])
    assert "using runs/sft" in capsys.readouterr().err and Path("runs/sft/predictions.jsonl").is_file()


def test_load_bench_mini(monkeypatch):
    monkeypatch.setattr(ev.data, "mini", lambda *a, scale: [(*a, scale)])
    assert ev.load_bench("mini") == [("test", "mix", "reason", 500, 0, 1)]
    assert ev.load_bench("mini-x2", "obqa", "dev", None, 7, 3) == [("dev", "mix", "obqa", 7, 3, 2)]


def test_load_bench_draws_by_seed(monkeypatch):
    monkeypatch.setattr(ev.data, "find_data", lambda d, name, split: Path(name))
    monkeypatch.setattr(
        ev.data, "read_tempreason", lambda path, setting, skip_bad: (example(str(i)) for i in range(50))
    )
    ids = [
        [int(e.id) for e in ev.load_bench("tempreason-l2", n=n, seed=s)] for n, s in ((9, 0), (9, 0), (9, 1), (99, 0))
    ]
    assert ids[0] == ids[1] == sorted(set(ids[0])) and len(ids[0]) == 9 and ids[0] != ids[2]
    assert ids[3] == list(range(50)) and len(ev.load_bench("tempreason-l2")) == 50
    monkeypatch.setattr(ev.data, "read_tempreason", lambda path, setting, skip_bad: iter(()))
    with pytest.raises(UserError, match="no questions"):
        ev.load_bench("tempreason-l2")


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--bench", "squad"], "invalid choice: 'squad'"),
        (["--n", "0"], "--n: expected a whole number from 1 to 1000000000, got '0'"),
        (["--beams", "-1"], "--beams: expected"),
        (["--batch-size", "many"], "--batch-size: expected a whole number from 1 to 1000000000, got 'many'"),
        (["--bench", "tempreason-l2", "--setting", "mix"], "error: --setting mix exists only for mini"),
        (["--bench", "mini", "tempreason-l2", "--predictions", "p"], "error: --predictions belongs to one bench"),
        (["--predictions", "absent.jsonl"], "error: absent.jsonl: cannot be read"),
        (["--ckpt", "runs/poor", "--out", "file/x"], "error: --out file/x: cannot make this folder"),
        (["--seed", "-1"], "--seed: expected a whole number from 0 to"),
        (["--by", "colour"], "invalid choice: 'colour'"),
        (["--bench", "traveler", "--errors", "5"], "error: --errors knows no kinds of error in TRAVELER"),
    ],
)
def test_bad_arguments_exit_2_with_a_sentence(bench, capsys, argv, message):
    Path("file").write_text("")
    with pytest.raises(SystemExit) as e:
        run(lambda: ev.main(argv))
    err = capsys.readouterr().err
    assert e.value.code == 2 and message in err and "Traceback" not in err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--ckpt", "runs/good", "runs/bad"], "runs/bad is broken"),
        (["--ckpt", "runs/bad", "runs/good"], "runs/bad is broken"),
        (["--ckpt", "runs/good", "--bench", "mini", "timeqa-easy", "--data-dir", "absent"], "absent is not a folder"),
        (["--ckpt", "runs/good", "--predictions", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["--ckpt", "runs/good", "runs/poor", "--out", "file"], "--out file/runs-good: cannot make this folder"),
    ],
)
def test_what_cannot_work_is_noticed_before_anything_is_decoded(bench, monkeypatch, argv, message):
    Path("file").write_text("")

    def load(name, device=None):
        if name == "runs/bad":
            raise UserError("runs/bad is broken")
        return name, None, None, {}

    monkeypatch.setattr(sys.modules["tsqa"], "load_run", load)
    with pytest.raises(UserError, match=message):
        ev.main(argv)
    assert bench == []


@pytest.mark.parametrize("main, examples", [(ev.main, 3), (data.main, 3)])
def test_help_fits_a_screen_and_shows_every_default(capsys, monkeypatch, main, examples):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 100 and max(map(len, text.splitlines())) <= 80
    options, shown = text.split("options:\n")[1].split("examples:\n")
    assert shown.count("  python ") == examples and options.count("\n\n") >= 2  # groups
    flags = re.split(r"\n  (?=-)", options.strip())
    switches = ("-h", "--stats", "--train-tokenizer", "--predictions", "--errors", "--plot", "--dump-prompts")
    for flag in flags:
        assert re.search(r"\s{2,}\S+ \S+", flag)
        assert flag.count("(default:") == (not flag.startswith(switches)), flag
