"""Pretraining of the tiny model: the tasks say what they should, the curriculum moves, a resumed run is the same run."""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import tsqa
from data import Names, Tokenizer

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
LONG = "January February March April May June July August September October November December".split()

# What tells a fact, written anew: {s} subject, {o} answer, {t} a time, {r} a time in brackets, {a} and {b} its two ends.
# The first wording is TempReason's, the second also tells a gap in the past.
TOLD = {
    "position": "{s} holds the position of {o} {t}|{s} served as {o} {t}|{s} was {o} {t}|As {o} {r}, {s} was often away"
    "|{s} was appointed {o} in {a}, an office held until {b}",
    "team": "{s} plays for {o} {t}|{s} played for {o} {t}|{s} signed for {o} in {a} and left in {b}"
    "|{s} spent some seasons {r} with {o}|{s} appeared for {o} {t}",
    "employer": "{s} works for {o} {t}|{s} worked for {o} {t}|{s} joined {o} in {a} and stayed until {b}"
    "|{s} was on the staff of {o} {t}|There followed work at {o} {r}",
    "party": "{s} is a member of the {o} {t}|{s} was a member of the {o} {t}|{s} entered the {o} in {a} and left it in {b}"
    "|{s} stood for the {o} {r}",
    "school": "{s} attended {o} {t}|{s} studied at {o} {t}|{s} was educated at {o} {r}|{s} entered {o} in {a} and graduated in {b}",
    "coach": "{o} is the head coach of {s} {t}|{o} coached {s} {t}|{o} took over {s} in {a} and was replaced in {b}"
    "|With {o} as head coach {r}, {s} changed its style",
    "chair": "{o} is the chair of {s} {t}|{o} chaired {s} {t}|{o} was elected chair of {s} in {a} and stepped down in {b}"
    "|Under {o} {r}, {s} grew",
    "government": "{o} is the head of the government of {s} {t}|{o} led the government of {s} {t}"
    "|{o} formed a government of {s} in {a} that lasted until {b}",
    "owner": "{s} is owned by {o} {t}|{o} owned {s} {t}|{o} bought {s} in {a} and sold it in {b}|{s} belonged to {o} {r}",
}
TOLD = {relation: forms.split("|") for relation, forms in TOLD.items()}
DATE = rf"(?:(?:{'|'.join(MONTHS)}), \d{{3,4}}|(?:(?:{'|'.join(LONG)}) )?\d{{3,4}})"
TIME = rf"(?:from (?P<a1>{DATE}) (?:to|until) (?P<b1>{DATE})|between (?P<a2>{DATE}) and (?P<b2>{DATE})"
TIME += rf"|in (?P<a3>{DATE})|since (?P<a4>{DATE}))"
ASIDES = (  # sentences of other events
    r"In \d+, {s} received the \S+ Prize|In \w+ \d+, the \S+ Stadium was opened|\S+ \S+, a rival, died in \d+"
    r"|{s} was awarded an honorary degree by the University of \S+ in \w+ \d+|At the age of \d+, {s} moved to \S+"
    r"|In the \d+s, \S+ \S+ wrote a column about {s}|A match against \S+ F\.C\. in \d+ drew [\d,]+ people"
    r"|The \S+ Commission met from \d+ to \d+|{s} was elected a fellow of the \S+ Society in \d+"
    r"|\S+ \S+ was the secretary of the \S+ Club \(\d+–\d+\)"
)
NOW = 2022 * 12 + 11


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(ROOT / "assets" / "tiny-t5")


def span(date):
    """`Mar, 1949` and `March 1949` -> one month, `1949` -> its first and its last"""
    year = 12 * int(re.search(r"\d+", date)[0])
    month = next((i for i in range(12) if MONTHS[i] in date), None)
    return (year, year + 11) if month is None else (year + month,) * 2


def order(date, asked):
    """Which of 0, 1, 2 = before, at, after the text allows: two months leave no doubt, a year and a month in it do."""
    possible = (date[0] < asked[1], date[0] <= asked[1] and asked[0] <= date[1], date[1] > asked[0])
    return {x for x in range(3) if possible[x]}


def label_of(date, asked):
    """The label of a date: a year alone is compared with the year that is asked about."""
    return {1} if date[0] < date[1] and 1 in order(date, asked) else order(date, asked)


def as_text(tokenizer, task):
    """The text of a source, with GAPS in it, and the place in it where each piece ends."""
    gaps = {tokenizer.sentinel(k): tokenizer.sp.piece_to_id(f"<0x0{k + 1}>") for k in (0, 1)}
    ids = [gaps.get(i, i) for i in task.ids]
    ends = {
        i: len(tokenizer.sp.decode(ids[: i + 1]))
        for i in range(len(ids))
        if any(getattr(task, n)[i] >= 0 for n in data.LABELS)
    }
    return tokenizer.sp.decode(ids), ends


def labels_of(task, name, ends):
    return {ends[i]: x for i, x in enumerate(getattr(task, name)) if x >= 0}


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


def read_head(head, context):
    """`Ann Lee plays for _ in Mar, 1999, _.` -> (relation, subject, in|after|before, month or name, tense, place of the time)"""
    assert head.count(data.GAPS[1]) == 1 and head.endswith(f", {data.GAPS[1]}.")
    head = head.removesuffix(f", {data.GAPS[1]}.") + "."
    commas = [m.start() for m in re.finditer(", ", head)]  # names hold some too
    parts = [(*head[:i].split(" ", 1), head[i + 2 : -1], "front") for i in commas if " " in head[:i]]
    words = re.finditer(" (in|after|before) ", head)
    parts += [(m[1], head[m.end() : -1], head[: m.start()], "end") for m in words]
    for word, asked, gap, place in parts:
        for relation, forms in TOLD.items():
            for form, tense in zip(forms, ("present", "past"), strict=False):
                r = re.escape(form.removesuffix(" {t}")).replace(r"\{s\}", "(.+)").replace(r"\{o\}", data.GAPS[0])
                m = re.fullmatch(r, gap)
                if m and m[1] in context and (asked in context or re.fullmatch(DATE, asked)):
                    return relation, m[1], word.lower(), asked, tense, place
    raise AssertionError(head)


def read_facts(context, subject, prose):
    """What a text tells of its subject -> [(relation, answer, start, end, {place where each date ends: date}, end)]"""
    found, start = [], r"(?:^|(?<=\. ))"
    context = context.replace(subject, "§" * len(subject))
    context = re.sub(
        rf"{start}(?:{ASIDES.replace('{s}', '§+')})\.(?= |$)", lambda m: " " * (len(m[0]) - 1) + ".", context
    )
    words = {"s": "§+", "t": TIME, "r": rf"\((?P<a5>{DATE})–(?P<b5>{DATE}|\d\d)\)"}
    words |= {"a": f"(?P<a6>{DATE})", "b": f"(?P<b6>{DATE})", "o": r"(?P<o>[^§ ][^§]*?)"}
    for relation, forms in TOLD.items():
        for form in forms[1:] if prose else forms[:1]:
            r = re.escape(form.replace("{s} was {o} {t}", "{s} was {no}{o} {t}"))
            for key, text in (words | {"no": "(?!on the staff|a member|appointed)"}).items():
                r = r.replace(rf"\{{{key}\}}", text)
            stop = (
                r"\.(?=$| §| As | There |  )" if form.endswith("{o}") else r"\.(?= |$)"
            )  # not at the dots of `C.D. Acme`
            for m in re.finditer(start + r + stop, context):
                told = m.groupdict()
                a, b = (next((k for k in told if k[0] == x and told[k]), None) for x in "ab")
                first = last = span(told[a])
                if b:
                    last = span(told[a][:2] + told[b] if len(told[b]) == 2 else told[b])
                elif " since " in m[0]:
                    last = (NOW, NOW)
                dates = {m.end(a): first} | ({m.end(b): last} if b else {})
                found.append((relation, m["o"], first, last, dates, m.end()))
    return found


@pytest.mark.parametrize("prose", [False, True])
def test_fact_tasks_label_what_the_text_says(tokenizer, prose):
    rng, seen = random.Random(0), Counter()
    names = Names(rng, "train")
    for n in range(300):
        level = "l2" if n % 2 else "l3"
        task = data.fact_task(rng, names, tokenizer, rng.randint(2, 6), level, prose)
        assert len({len(task.ids), *(len(getattr(task, name)) for name in data.LABELS)}) == 1
        assert task.ids.count(tokenizer.sentinel(0)) == 1 and task.target[0] == tokenizer.sentinel(0)
        text, ends = as_text(tokenizer, task)
        head, context = text.split(" context: ")
        shift = len(text) - len(context)
        relation, subject, word, asked, tense, place = read_head(head, context)
        facts = read_facts(context, subject, prose)
        own = [f for f in facts if f[0] == relation]
        if level == "l2":
            t, known = span(asked), None
            golds = {o for _, o, a, b, *_ in own if a[0] <= t[0] <= b[1]}
            # a question is about a month of which the text leaves no doubt
            assert all(not (a[0] != a[1] and a[0] <= t[0] <= a[1]) for f in own for a in f[2:4])
        else:
            known = next((f for f in own if f[1] == asked), None)
            assert known, (own, text)
            t, others = known[3] if word == "after" else known[2], [f for f in own if f is not known]
            if word == "after":
                golds = {min((f for f in others if f[2] >= known[3] or f[2][0] > known[3][0]), key=lambda f: f[2])[1]}
            else:
                golds = {max((f for f in others if f[2] < known[2]), key=lambda f: f[2])[1]}
        cut = task.target.index(tokenizer.sentinel(1))
        answer, held = (tokenizer.sp.decode(ids) for ids in (task.target[1:cut], task.target[cut + 1 :]))
        assert answer in (golds or {""}) and task.sure == (len(golds) < 2)
        if answer:
            (fact,) = (f for f in own if f[1] == answer)
            dates = re.fullmatch(f"from ({DATE})" if prose else f"from ({DATE}) to ({DATE})", held)
            assert dates and list(map(span, dates.groups())) == list(fact[2 : 3 if prose else 4]), (held, fact)
        else:
            assert not held
        # dates: every one that the question has to be compared with, and no other
        dates = {}
        for f in facts:
            for at, date in f[4].items():
                if known is None or (f is not known and (at == min(f[4])) == (word == "after")):
                    dates[at + shift] = label_of(date, t)
        told = labels_of(task, "dates", ends)
        assert told.keys() == dates.keys() and all(x in dates[at] for at, x in told.items()), (facts, text)
        # full stops: does the fact answer, and if not, on which side of the question does it lie?
        told = labels_of(task, "facts", ends)
        for f in facts:
            right, label = f[0] == relation and f[1] in golds, told.pop(f[5] + shift, None)
            begun, over = order(f[2], t), order(f[3], t)
            allowed = {1} if right else {2 if (x == 0) == (word == "before") else 0 for x in over}
            if not right and f[0] != relation and known is None and begun != {2} and over != {0}:  # a fact of that time
                allowed = {None} if 2 not in begun and 0 not in over else allowed | {None}
                seen["unlabelled"] += label is None
            assert label in allowed, (f, text)
        assert not told
        # answers
        stop = lambda runs: sorted(run.rstrip(".") for run in runs)
        assert stop(labelled(tokenizer, task, "golds", 1)) == stop(f[1] for f in own if f[1] in golds)
        assert stop(labelled(tokenizer, task, "golds", 0)) == stop(
            f[1] for f in facts if not (f in own and f[1] in golds)
        )
        assert stop(labelled(tokenizer, task, "named", 1)) == stop([known[1]] if known else [])
        assert stop(labelled(tokenizer, task, "named", 0)) == stop(f[1] for f in facts if known and f is not known)
        seen.update([word, tense, place, relation, "several" if len(golds) > 1 else "none" if not golds else "one"])
        seen.update(
            ["other relation"] * (len(own) < len(facts)) + ["1949–66"] * bool(re.search(r"\d{4}–\d\d\)", context))
        )
        seen.update(["March 1949"] * bool(re.search("[a-z]{3} 1[0-9]{3}[^0-9]", context)))
    kinds = [*TOLD, "in", "after", "before", "present", "past", "front", "end", "one"]
    kinds += ["other relation", "1949–66", "March 1949", "unlabelled", "none"] if prose else ["several"]
    assert min(seen[k] for k in kinds) >= 3, seen


def test_date_tasks_label_what_the_text_says(tokenizer):
    rng, kinds = random.Random(1), Counter()
    for level in range(len(data.DATE_LEVELS)):
        for _ in range(60):
            task = data.date_task(rng, None, tokenizer, level)
            gap = task.ids.index(tokenizer.sentinel(0))
            asked = span(re.match(rf"In ({DATE}),", tokenizer.sp.decode(task.ids[:gap]))[1])
            ends = [i for i, x in enumerate(task.dates) if x >= 0]
            assert data.DATE_LEVELS[level][0] <= len(ends) <= data.DATE_LEVELS[level][1]
            for i in ends:
                date = re.search(rf"(?:from|to|in|on) ({DATE})$", tokenizer.sp.decode(task.ids[gap + 1 : i + 1]))[1]
                assert {task.dates[i]} == label_of(span(date), asked), date
                kinds.update([task.dates[i], re.sub(r"\w", "", date), date.isdigit()])
    assert min(kinds[k] for k in (0, 1, 2, ", ", " ", True)) > 20, kinds


def test_put_reads_nested_labels(tokenizer):
    inner = data.marked("Mar, 1949", dates=2)
    task = data.Task(tokenizer)
    task.put("copy:")
    task.put(
        f"{data.marked('Ann ' + data.marked('Lee', named=0) + f' left {inner} with', golds=1, named=1)} Bo{data.marked('.', facts=2)}{data.GAPS[0]}"
    )
    n = len(tokenizer.pieces("copy:"))
    assert tokenizer.sp.decode(task.ids[:-1]) == "copy: Ann Lee left Mar, 1949 with Bo." and task.ids[
        -1
    ] == tokenizer.sentinel(0)
    assert labelled(tokenizer, task, "golds", 1) == [
        "Ann Lee left Mar, 1949 with"
    ]  # a label goes on where another ends
    assert not any(x >= 0 for name in data.LABELS for x in getattr(task, name)[:n])
    (i,) = [i for i, x in enumerate(task.dates) if x >= 0]
    assert task.dates[i] == 2 and tokenizer.sp.decode(task.ids[: i + 1]) == "copy: Ann Lee left Mar, 1949"
    (i,) = [i for i, x in enumerate(task.facts) if x >= 0]
    assert task.facts[i] == 2 and i == len(task.ids) - 2
    assert set(task.named) == {-100, 0, 1} or set(task.named) == {-100, 1}
    task = data.Task(tokenizer)
    task.put("No label at all.")
    assert task.ids == tokenizer.pieces("No label at all.") and not any(
        x >= 0 for n in data.LABELS for x in getattr(task, n)
    )


def test_match_tasks_mark_the_same_name_and_no_other(tokenizer):
    rng = random.Random(3)
    names, several, places = Names(rng, "train"), 0, []
    for _ in range(200):
        task = data.match_task(rng, names, tokenizer, 5)
        head = as_text(tokenizer, task)[0].split(" context: ")[0]
        front = re.fullmatch(rf"(After|Before) (.+), {data.GAPS[0]}\.", head)
        head, places = (
            (front or re.fullmatch(rf"{data.GAPS[0]} (after|before) (.+)\.", head))[2],
            places + [bool(front)],
        )
        # `).` and `..` may be one piece: then the full stop is labelled too, and two names run into one
        same, others = (
            [
                name.rstrip(".")
                for run in labelled(tokenizer, task, "named", x)
                for name in re.split(r"(?<=[).]\.) ", run)
            ]
            for x in (1, 0)
        )
        assert same == [head.rstrip(".")]
        assert len(others) == 4 and head not in others
        several += len(set(others)) == 4
    assert several == 200 and 50 < sum(places) < 150


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
    assert c.size["copy"] == 30 and c.shares()["l2"] == 0 and c.shares()["dates"] > c.shares()["match"] > 0.2
    for _ in range(200):
        c.update("dates", 1.0)
        c.update("match", 1.0)
    assert c.shares()["l2"] > 0.2 and sum(c.shares().values()) == pytest.approx(1)
    for _ in range(30):
        c.update("l2", 0.5)
    assert c.size["l2"] == 1
    for _ in range(2000):
        c.update("l2", 1.0)
    assert c.size["l2"] == 20 and c.size["l3"] == 2 and c.shares()["prose"] == 0
    skipped = {"copy": 0, "dates": 0, "match": 0, "l2": 0.5, "l3": 0.5, "prose": 0}
    assert tsqa.Curriculum(["copy", "dates", "match"]).shares() == skipped
    for _ in range(2000):
        c.update("l3", 1.0)
        c.update("prose", 1.0)
    assert c.size["prose"] == 10 and 0 < c.shares()["prose"] < c.shares()["l2"] + c.shares()["l3"]
    assert 2 * c.shares()["l2"] < c.shares()["l3"]  # mastered, L2 is only kept up
    assert sum(c.shares().values()) == pytest.approx(1)


def test_events_are_taught_alone_and_grow():
    c = tsqa.Curriculum(tasks="events")
    assert c.shares() == {"events": 1.0} and c.size == {"events": 4}
    sizes = [4]
    for _ in range(2000):
        c.update("events", 0.9)
        sizes += [c.size["events"]] * (c.size["events"] > sizes[-1])
    assert sizes[:4] == [4, 5, 6, 7] and sizes[-1] == 12


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
    assert moved.abs().sum(1).count_nonzero() == 20 + 12 + 11  # May is both short and long


def arguments(out, *more):
    return tsqa.parse_args(["--stage", "pretrain", "--out", str(out), "--max-pieces", "512", "--log-every", "1", *more])


@pytest.fixture
def narrow(monkeypatch, tmp_path):
    """The same model, narrow, so that a step takes milliseconds."""
    config = tsqa.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=5, num_decoder_layers=1, num_heads=4)
    monkeypatch.setattr(tsqa, "read_config", lambda _: config)
    monkeypatch.setattr(
        tsqa.Curriculum, "shares", lambda self: dict.fromkeys(("copy", "dates", "match", "l2", "l3", "prose"), 1 / 6)
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


def test_pretraining_goes_on_from_an_earlier_run(narrow, tmp_path, capsys):
    more = ("--steps", "3", "--dtype", "float32")
    tsqa.pretrain(arguments(tmp_path / "first", *more))
    state = torch.load(tmp_path / "first" / "trainer.pt", weights_only=True)
    state["curriculum"]["size"]["l3"] = 7
    torch.save(state, tmp_path / "first" / "trainer.pt")
    start = ("--start", str(tmp_path / "first"))
    tsqa.pretrain(arguments(tmp_path / "second", *more, *start, "--lr", "0", "--skip", "dates"))
    second = torch.load(tmp_path / "second" / "trainer.pt", weights_only=True)
    assert all(torch.equal(state[part][k], second[part][k]) for part in ("model", "heads") for k in state[part])
    assert second["step"] == 3 and second["curriculum"]["size"]["l3"] == 7 and second["curriculum"]["skip"] == ["dates"]
    with pytest.raises(data.UserError, match="trainer.pt is missing .*--start takes"):
        tsqa.pretrain(arguments(tmp_path / "third", *more, "--start", str(tmp_path)))
    assert not (tmp_path / "third" / "args.json").exists()


def test_facts_are_judged_by_the_answer_and_not_by_what_follows(narrow, tokenizer, tmp_path, monkeypatch):
    rng = random.Random(5)
    task = data.fact_task(rng, Names(rng, "train"), tokenizer, 3, "l2")
    assert task.target[task.first - 1] == tokenizer.sentinel(1) and task.first < len(task.target)
    model = tsqa.T5(tsqa.read_config(None))
    heads = tsqa.nn.ModuleDict({name: tsqa.nn.Linear(32, n) for name, n in data.LABELS.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def judged(wrong):
        """The row of a step whose decoder is right but at place `wrong`."""
        target = torch.tensor([[*task.target, data.EOS]])
        target[0, wrong] += 1
        monkeypatch.setattr(model, "logits", lambda h: F.one_hot(target, model.config.vocab_size) * 9.0 + 0 * h.sum())
        return tsqa.pretrain_step(model, heads, optimizer, [task], arguments(tmp_path, "--dtype", "float32"))

    assert [judged(i)["first"] for i in (1, task.first - 1, task.first, -1)] == [0, 0, 1, 1]
    assert judged(-1)["em"] == 0


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
