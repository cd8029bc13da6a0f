"""Checkpoints compared: parts of a bench, kinds of error, plots; and `data.py --stats`."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import data
import evaluate as ev
from data import Example, Fact, UserError


def month(year):
    return int(year * 12)


def example(question, answers=("Varn FC",), time=(1952, 1952), facts=(), context="", id="x"):
    facts = [Fact("Ola Brenn", "plays for", name, month(a), month(b)) for name, a, b in facts]
    context = context or " ".join(data.statement(f) if f.relation in data.RELATIONS else f.object for f in facts)
    return Example(id, question, context, list(answers), facts, time and tuple(map(month, time)))


CAREER = (("Varn FC", 1950, 1955), ("Odell", 1955, 1960), ("Brenn City", 1963, 1970))
TEAM = "Which team did Ola Brenn play for"


def columns(text):
    """[{column: cell}] of each Markdown table in a text"""
    tables = []
    for block in text.split("\n\n"):
        cells = [[c.strip() for c in line.strip("| ").split(" | ")] for line in block.splitlines() if line[:1] == "|"]
        if cells:
            tables.append([dict(zip(cells[0], line, strict=True)) for line in cells[2:]])
    return tables


# parts of a bench


@pytest.mark.parametrize(
    "question, kind, century, facts, answer, distance",
    [
        (example(f"{TEAM} in May, 1952?", facts=CAREER),
         "L2 in", "20th century", "1 to 3 facts", "answerable", "wrong fact 1 to 5 years away"),
        (example(f"{TEAM} after Varn FC?", ["Odell"], (1955, 1960), CAREER),
         "L3 after", "20th century", "1 to 3 facts", "answerable", "wrong fact adjoins"),
        (example(f"{TEAM} before Odell?", ["Varn FC"], (1799, 1801), CAREER),
         "L3 before", "before 1800", "1 to 3 facts", "answerable", "wrong fact 5 years away or more"),
        (example(f"{TEAM} before Day After Odell?", ["Varn FC"], (2003, 2003), (("Varn FC", 2003, 2004),) * 5 + (("Day After Odell", 2003.5, 2005),)),
         "L3 before", "21st century", "6 to 9 facts", "answerable", "wrong fact under 1 year away"),
        (example(f"{TEAM} in May, 1961?", [""], (1961.5, 1961.5), CAREER + CAREER[:1]),
         "L2 in", "20th century", "4 or 5 facts", "unanswerable", "wrong fact 1 to 5 years away"),
        (example("Who chaired Acme in Mar 1852?", ["A"], (1852, 1852), (("A", 1850, 1855),) * 10),
         "L2 in", "19th century", "10 or more facts", "answerable", "no wrong fact"),
        (example("Who edited it before Apr 1921?", ["A"], (0, 1921)), "before", "20th century", "no facts", "answerable", "no wrong fact"),
        (example("Who edited it from 2016 to 2022?", ["A"], (2016, 2022)), "from", "21st century", "no facts", "answerable", "no wrong fact"),
        (Example("x", "Who edited it after 1999?", "", ["A"], time=(24000, data.LAST_MONTH)),
         "after", "21st century", "no facts", "answerable", "no wrong fact"),
        (example("Who edited it?", [""], None), "no time", "no year", "no facts", "unanswerable", "no wrong fact"),
    ],
)  # fmt: skip
def test_the_cells_of_a_question(question, kind, century, facts, answer, distance):
    labels = {name: label for name, (_, label) in ev.question_cells(question).items()}
    assert labels == dict(kind=kind, century=century, facts=facts, answer=answer, distance=distance)


@pytest.mark.parametrize("months, label", [(0, "adjoins"), (1, "under 1 year away"), (11, "under 1 year away"),
    (12, "1 to 5 years away"), (59, "1 to 5 years away"), (60, "5 years away or more")])  # fmt: skip
def test_distance_counts_months_on_both_sides_and_the_same_relation_alone(months, label):
    other = Fact("Ola Brenn", "works for", "Acme", 23424, 23424)
    for start in (23424 + months, 23424 - months):
        ex = example("?", facts=CAREER[:1])
        ex.facts += [Fact("Ola Brenn", "plays for", "Odell", start, start), other]
        assert ev.question_cells(ex)["distance"][1] == f"wrong fact {label}"


MINI = [*data.mini("test", "mix", "mix", 240, 5)]


def guesses(seed, share):
    """Right answers to `share` of MINI, an object of the facts to the rest"""
    rng = random.Random(seed)
    return [ex.answers[0] if rng.random() < share else rng.choice(ex.facts).object for ex in MINI]


def test_every_question_is_in_one_part_of_each_breakdown():
    parts = ev.breakdown(MINI)
    assert list(parts) == ["all", *ev.BY] and list(parts["kind"]) == ["L2 in", "L3 after", "L3 before"]
    assert list(parts["century"])[:: len(parts["century"]) - 1] == ["before 1800", "21st century"]
    for part in parts.values():
        assert sorted(np.concatenate(list(part.values()))) == list(range(len(MINI)))
    for i in parts["kind"]["L3 after"]:
        assert "-l3-" in MINI[i].id and " after " in MINI[i].question
    assert {MINI[i].id for i in parts["answer"]["unanswerable"]} == {ex.id for ex in MINI if ex.answers == [""]}
    assert list(ev.breakdown([ex for ex in MINI if "-l2-" in ex.id], ["kind"])) == ["all"]  # one part is none


def test_rows_of_the_parts_add_up_and_p_is_that_of_a_direct_computation():
    a, other = guesses(1, 0.5), guesses(2, 0.7)
    b = [y if i % 4 == 0 else x for i, (x, y) in enumerate(zip(a, other))]  # mostly the same: pairing matters
    answers = {"a": a, "b": b, "rule": [ev.rule_answer(ex) for ex in MINI]}
    parts = ev.breakdown(MINI)
    rows = ev.score_rows("mini", MINI, answers, parts=parts)
    em = {k: np.array([ev.exact_match(p, ex.answers) for p, ex in zip(v, MINI)]) for k, v in answers.items()}
    assert [r["system"] for r in rows[:3]] == ["a", "b", "rule"] and {r["system"] for r in rows[3:]} == {"a", "b"}
    for part in parts.values():
        for system in "a", "b":
            mine = [r for r in rows if r["system"] == system and r["questions"] in part]
            assert sum(r["n"] for r in mine) == len(MINI)
            right = sum(round(float(r["EM"]) * r["n"] / 100) for r in mine)
            assert right == em[system].sum()
    rng = random.Random(0)
    for label in "all", "L3 before", "unanswerable":
        at = next(part[label] for part in parts.values() if label in part)
        diff = (em["b"] - em["a"])[at]
        row = next(r for r in rows if r["questions"] == label and r["system"] == "b")
        assert row["95 %"] == "{:.1f} to {:.1f}".format(*ev.bootstrap_interval(100 * em["b"][at]))
        assert float(row["EM - a"].split()[0]) == pytest.approx(100 * diff.mean(), abs=0.051)
        values, centre = list(diff), diff.mean()
        means = [sum(rng.choices(values, k=len(values))) / len(values) - centre for _ in range(4000)]
        p = np.mean([abs(m) >= abs(centre) - 1e-9 for m in means])
        assert float(row["p"].strip("< ")) == pytest.approx(p, abs=0.03)


# kinds of error

PROSE = (
    "Ola Brenn signed for Varn FC in 1950 and left in 1955. In 1952, she won the Grathick Prize. From 1963 to 1970 she "
    "played for Brenn City. She liked Old Tom."
)


@pytest.mark.parametrize(
    "answer, cut, kind",
    [
        ("the varn fc", 0, "right"),
        ("varn fc", 1, "right"),  # EM is what counts
        ("", 0, "empty"),
        (" The.", 0, "empty"),
        ("F.C. Varn", 0, "other (another spelling)"),
        ("Brenn City", 0, "remote"),
        ("Odell", 0, "remote"),  # a fact that the prose does not tell
        ("Brenn City F.C.", 1, "remote"),  # an alias; long as it may be
        ("Grathick Prize", 0, "proximal"),
        ("Old Tom", 0, "other"),
        ("1950 and left in 1955.", 0, "other"),
        ("1950 and left in 1955.", 1, "malformed (no end)"),
        ("Brenn", 0, "other"),  # half of a name
        ("Bren", 0, "malformed (not in the context)"),  # half of a word
        ("Grathick Grathick", 0, "malformed (repeats)"),
        ("so the Grathick of Grathick of Grathick", 0, "malformed (repeats)"),
        ("Acme Acmeville", 0, "malformed (not in the context)"),
        ("Acmen en", 0, "malformed (not in the context)"),
    ],
)
def test_kinds_of_answers(answer, cut, kind):
    ex = example(f"{TEAM} in May, 1952?", facts=CAREER, context=PROSE)
    assert ev.answer_kinds(ex, [answer, "Varn FC", "Old Tom"], [cut, 0, 0]) == [kind, "right", "other"]
    if kind == "empty":
        ex.answers = [""]
        assert ev.answer_kinds(ex, [answer, "Varn FC"]) == ["right", "other"]  # asked of a gap


def test_kinds_of_mini_agree_with_the_facts():
    for ex in MINI:
        same = [f for f in ex.facts if (f.subject, f.relation) == (ex.facts[0].subject, ex.facts[0].relation)]
        away = [f.object for f in same if f.start > ex.time[1] or f.end < ex.time[0]]
        near = {f.object for f in same} - set(away)
        wrong = [x for x in away if x not in near and not any(data.same_answer(x, a) for a in ex.answers)]
        assert set(ev.answer_kinds(ex, wrong)) <= {"remote"}
        assert set(ev.answer_kinds(ex, ex.answers)) == {"right"}


def test_errors_count_and_show_what_the_first_alone_gets_right():
    exs = [example(f"{TEAM} in May, 1952?", facts=CAREER, context=PROSE, id=f"q{i}") for i in range(6)]
    a = ["Varn FC"] * 4 + ["Odell", "Odell"]
    b = ["Varn FC", "Odell", "", "1950 and left", "Varn FC", "Odell"]
    text = ev.errors("mini", exs, {"a": a, "b": b}, 2, {"b": [0, 0, 0, 1, 0, 0]})
    assert columns(text)[0] == [
        dict(system="a", bench="mini", right="4", remote="2", proximal="0", other="0", empty="0", malformed="0"),
        dict(system="b", bench="mini", right="2", remote="2", proximal="0", other="0", empty="1", malformed="1"),
    ]
    _, told, *shown = text.split("\n\n")
    assert told == "a right, b wrong: 3 of 6 questions (1 remote, 1 empty, 1 malformed); b right, a wrong: 1"
    ids = [s.split()[1] for s in shown]
    assert len(ids) == 2 and set(ids) <= {"q1", "q2", "q3"} and PROSE in shown[0]
    text = ev.errors("mini", exs, {"a": a, "b": b}, 9, {"b": [0, 0, 0, 1, 0, 0]})
    assert [s.split()[1] for s in text.split("\n\n")[2:]] == ["q1", "q2", "q3", "q5"]  # both wrong
    assert "  a:         Varn FC  [right]\n  b:         Odell  [remote]\n  accepted:  Varn FC" in text
    assert "  b:         -  [empty]" in text and "  b:         1950 and left  [malformed (no end)]" in text
    alone = ev.errors("mini", exs, {"a": a}, 9, {}).split("\n\n")
    assert alone[1] == "a wrong: 2 of 6 questions (2 remote)" and [s.split()[1] for s in alone[2:]] == ["q4", "q5"]
    assert ev.errors("mini", exs, {"a": ["Varn FC"] * 6}, 9, {}).endswith("\n\na wrong: 0 of 6 questions")


# command line and plots


@pytest.fixture
def three(monkeypatch, tmp_path):
    """runs/a, b, c answer MINI; a pyplot that keeps what is drawn"""
    answers = {"runs/a": guesses(1, 0.9), "runs/b": guesses(2, 0.5), "runs/c": ["word " * 60] * len(MINI)}
    loaded = []

    def load_run(name, device=None):
        loaded.append(name)
        return name, SimpleNamespace(encode=lambda text: [*text.split(), 1]), None, {}

    predict = lambda model, *_, max_new_tokens, **__: answers[model][: max_new_tokens * 5]  # 240
    monkeypatch.setitem(sys.modules, "tsqa", SimpleNamespace(load_run=load_run, predict=predict))
    monkeypatch.setattr(ev, "load_bench", lambda *_: MINI)
    monkeypatch.chdir(tmp_path)
    for run in answers:
        Path(run).mkdir(parents=True)
        Path(run, "args.json").write_text("{}")
    return loaded


def test_three_checkpoints(three, capsys):
    ev.main(["--ckpt", "runs/a", "runs/b", "runs/c", "--errors", "3", "--by", "kind", "century", "--setting", "mix"])
    out = capsys.readouterr().out
    scores, kinds = columns(out)
    assert [r["system"] for r in scores[:4]] == ["runs/a", "runs/b", "runs/c", "no answer"]
    assert [r["questions"] for r in scores[4::3]][:4] == ["L2 in", "L3 after", "L3 before", "before 1800"]
    assert scores[4]["p"] == "-" and scores[5]["EM - runs/a"].startswith("-") and scores[6]["p"] == "< 0.001"
    n = dict(zip(("a", "b", "c"), [sum(int(r[k]) for k in ev.KINDS) for r in kinds]))
    assert n == dict(a=240, b=240, c=240) and kinds[2]["malformed"] == "240"
    right = {r["system"]: r["right"] for r in kinds}
    assert all(round(float(r["EM"]) * 2.4) == int(right[r["system"]]) for r in scores[:3])
    assert out.count("runs/a right, runs/") == 2 and out.count("\n  question:") == 6
    assert out.count("[malformed (no end)]") == 6  # runs/c stands beside runs/b
    assert three == ["runs/c", "runs/b", "runs/a", "runs/b", "runs/c"]  # all are tried first
    ev.main(["--ckpt", "runs/a", "--by"])
    assert {r["questions"] for r in columns(capsys.readouterr().out)[0]} == {"all"}


def test_plot_draws_curves_and_parts(three, capsys, monkeypatch):
    metrics = [
        {"step": 10, "loss": 2.5, "lr": 1},
        {"step": 20, "loss": 1.5, "dev_em": 30.0, "share_gold": 1, "kl": None},
    ]
    Path("runs/a/metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)) + '\n{"step": 30, "lo')
    Path("runs/b/metrics.jsonl").write_text(
        '{"step": 1, "reward": -0.5, "kl": 0.1, "vf_loss": 2}\n[1]\n3\n{"loss": 1}\n'
    )
    lines, bars, titles = [], [], []
    ax = SimpleNamespace(
        plot=lambda x, y, label, **_: lines.append((label, x, y)),
        barh=lambda at, width, height, xerr, label: bars.append((label, width, xerr)),
        set_yticks=lambda at, labels: titles.append(labels),
        set=lambda title, **_: titles.append(title),
        legend=lambda: 0,
        remove=lambda: titles.append("removed"),
    )
    sizes = []

    def subplots(rows, columns, **_):
        sizes.append((rows, columns))
        return SimpleNamespace(savefig=lambda f, format: f.write(format.encode())), np.array([[ax] * columns] * rows)

    pyplot = SimpleNamespace(subplots=subplots)
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(use=lambda _: 0, pyplot=pyplot))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    ev.main(["--ckpt", "runs/a", "runs/b", "--by", "kind", "--setting", "mix", "--plot", "new/p.svg"])
    assert Path("new/p.svg").read_text() == "svg" and sizes == [(3, 3)]
    assert [("runs/a", [10, 20], [2.5, 1.5]), ("runs/a", [20], [30.0])] == lines[:2]
    assert [t for t in titles if isinstance(t, str)] == [
        "loss",
        "dev_em",
        "reward",
        "kl",
        "vf_loss",
        "mini: all",
        "mini: kind",
    ] + ["removed"] * 2
    assert titles[-3] == "mini: kind" and titles[-4] == ("L2 in", "L3 after", "L3 before")
    rows = [r for r in columns(capsys.readouterr().out)[0] if r["system"] == "runs/b" and r["questions"][0] == "L"]
    label, width, (low, high) = bars[-1]
    assert label == "runs/b" and [f"{x:.1f}" for x in width] == [r["EM"] for r in rows]
    ends = [f"{a:.1f} to {b:.1f}" for a, b in zip(np.array(width) - low, np.array(width) + high)]
    assert ends == [r["95 %"] for r in rows]


def test_plot_without_matplotlib_or_place_says_so_first(three, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="--plot needs matplotlib; pip install matplotlib"):
        ev.main(["--ckpt", "runs/a", "--plot", "p.svg"])
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    Path("file").write_text("")
    with pytest.raises(UserError, match="--plot file: cannot make this folder"):
        ev.main(["--ckpt", "runs/a", "--plot", "file/p.svg"])
    assert three == []


# data.py --stats


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


FACTS = (
    "Ola Brenn plays for Varn FC from Jan, 1950 to Jan, 1955. \n Ola Brenn plays for Odell from Jan, 1955 to Jan, 1960."
)


def tempreason(id, answers, facts=FACTS, context="one two three"):
    question = f"{TEAM} in May, 1952?"
    return dict(id=id, question=question, text_answers=dict(text=answers), fact_context=facts, context=context)


def test_statistics_of_a_data_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path / "none"))
    generate = data.mini
    monkeypatch.setattr(data, "mini", lambda split, level, setting, n, seed: generate(split, level, setting, 50, seed))
    one_fact = FACTS.split("\n")[0]
    write(tmp_path / "tempreason" / "val_l2.json", tempreason("a", ["Varn FC"]), tempreason("b", ["Varn FC", "Odell"]),
        tempreason("c", ["Varn FC"], one_fact, "one two three four five six"))  # fmt: skip
    write(tmp_path / "test.hard.json", dict(idx="a", question="Who in 1920?", context="a b", targets=[""]),
        dict(idx="b", question="Who since 1930?", context="a b c d", targets=["a"]))  # fmt: skip
    data.main(["--stats", "--data-dir", str(tmp_path)])
    rows = columns(capsys.readouterr().out)[0]
    mini, official = rows[:12], rows[12:]
    l2 = {"data": "tempreason-l2", "split": "dev", "Table 1": "5521", "rows": "3", "distinct": "1", "facts": "1.7"}
    l2 |= {"several answers": "33.3 %", "unanswerable": "0.0 %", "years": "1952 to 1952"}
    assert official == [
        l2 | {"setting": "reason", "words": "19", "most words": "23"},
        l2 | {"setting": "obqa", "words": "4", "most words": "6"},
        {"data": "timeqa-hard", "setting": "obqa", "split": "test", "Table 1": "3078", "rows": "2", "distinct": "2"}
        | {"facts": "-", "words": "3", "most words": "4", "several answers": "0.0 %", "unanswerable": "50.0 %"}
        | {"years": "1920 to 1930"},
    ]
    assert len(mini) == 12 and {r["rows"] for r in mini} == {"50"} and {r["Table 1"] for r in mini} == {"-"}
    asked = list(generate("dev", "l2", "obqa", 50, 0))
    row = next(r for r in mini if (r["data"], r["setting"], r["split"]) == ("mini-l2", "obqa", "dev"))
    assert row["facts"] == f"{sum(len(ex.facts) for ex in asked) / 50:.1f}"
    assert row["unanswerable"] == f"{sum(ex.answers == [''] for ex in asked) * 2:.1f} %"


def test_statistics_download_nothing_and_say_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path))
    monkeypatch.setattr(data, "download", lambda *_, **__: pytest.fail("a download"))
    monkeypatch.setattr(data, "mini", lambda split, level, setting, n, seed: MINI[:3])
    data.main(["--stats"])
    out, err = capsys.readouterr()
    assert len(columns(out)[0]) == 12 and err.startswith(f"no official files in {tmp_path}; name their folder")
    with pytest.raises(UserError, match="absent is not a folder"):
        data.main(["--stats", "--data-dir", "absent"])


def test_show(capsys):
    data.main(["--show", "6", "--split", "test", "--level", "l3", "--setting", "obqa", "--seed", "4"])
    out = capsys.readouterr().out
    assert out.count("question:") == 6 == out.count("mini-test-l3-obqa-4-")
    with pytest.raises(SystemExit):
        data.main(["--show", "0"])
    assert "--show: expected a whole number from 1 to 1000000, got '0'" in capsys.readouterr().err


def test_the_setting_is_that_of_the_first_run(three, monkeypatch, capsys):
    told, asked = {"data": "mini", "setting": "obqa"}, []
    load = sys.modules["tsqa"].load_run
    monkeypatch.setattr(sys.modules["tsqa"], "load_run", lambda *a: (*load(*a)[:3], told))
    monkeypatch.setattr(ev, "load_bench", lambda bench, setting, *_: asked.append((bench, setting)) or MINI)
    ev.main(["--ckpt", "runs/a", "--by"])
    assert "mini: --setting obqa, as runs/a was trained" in capsys.readouterr().err
    ev.main(["--ckpt", "runs/a", "--by", "--setting", "mix"])
    ev.main(["--ckpt", "runs/a", "--by", "--bench", "tempreason-l2"])  # no other kind of data
    told["data"] = "tempreason-l3"
    ev.main(["--ckpt", "runs/a", "--by", "--bench", "tempreason-l2"])
    assert asked == [("mini", "obqa"), ("mini", "mix"), ("tempreason-l2", "reason"), ("tempreason-l2", "obqa")]


def test_dumped_prompts_come_with_the_command_that_scores_them(tmp_path, capsys):
    ev.main(["--bench", "traveler", "--n", "9", "--seed", "3", "--dump-prompts", str(tmp_path / "p")])
    assert "evaluate.py --bench traveler --n 9 --seed 3 --predictions FILE" in capsys.readouterr().err
