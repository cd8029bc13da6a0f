"""The generated data set: golds against brute force, names that no two splits share, the same seed the same questions."""

import hashlib
import itertools
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import data

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
VERBS = {  # what is asked -> the words that tell it in a fact; written anew, not read from data.py
    "Which position did": "holds the position of",
    "Which team did": "plays for",
    "Which employer did": "works for",
    "Which political party did": "is a member of the",
    "Where was": "attended",
    "Who was the head coach": "is the head coach of",
    "Who was the chair": "is the chair of",
    "Who was the head of the government": "is the head of the government of",
    "Who was the owner": "is owned by",
}


def brute_force(question, spans):
    """Golds from [(answer, first month, last month)] by walking through the months."""
    if m := re.search(r" in (\w{3}), (\d{3,4})\?$", question):
        month = MONTHS.index(m[1]) + 12 * int(m[2])
        return {answer for answer, a, b in spans if month in range(a, b + 1)} or {""}
    named = [(span, word) for span in spans for word in ("before", "after") if question.endswith(f" {word} {span[0]}?")]
    ((known, a, b), word) = max(named, key=lambda n: len(n[0][0]))
    begins = {}
    for answer, start, _ in spans:
        if answer != known:
            begins.setdefault(start, set()).add(answer)
    months = range(b, 30000) if word == "after" else range(a - 1, 0, -1)
    return begins[next(month for month in months if month in begins)]  # the first in which another spell begins


def spans_of_reason(ex):
    """Parses the context, not `ex.facts`."""
    verb = next(v for stem, v in VERBS.items() if ex.question.startswith(stem))
    spans = []
    for m in re.finditer(r"(.+?) from (\w{3}), (\d+) to (\w{3}), (\d+)\.(?: |$)", ex.context):
        left, right = m[1].split(f" {verb} ", 1)
        answer = left if ex.question.startswith(("Who was the head", "Who was the chair")) else right
        spans.append((answer, MONTHS.index(m[2]) + 12 * int(m[3]), MONTHS.index(m[4]) + 12 * int(m[5])))
    return spans


def spans_of_prose(ex):
    relation = next(r for r, (*_, stem) in data.RELATIONS.items() if ex.question.startswith(stem.split("{s}")[0]))
    return [(f.object, f.start, f.end) for f in ex.facts if f.relation == relation]


def test_golds_against_brute_force_over_10000_questions():
    count = {"l2-reason": 0, "l3-reason": 0, "l2-obqa": 0, "l3-obqa": 0, "several": 0, "none": 0}
    for split, n in (("train", 6000), ("dev", 2000), ("test", 2000)):
        for ex in data.mini(split, "mix", "mix", n, seed=7):
            kind = "-".join(ex.id.split("-")[2:4])
            spans = spans_of_reason(ex) if kind.endswith("reason") else spans_of_prose(ex)
            assert set(ex.answers) == brute_force(ex.question, spans), ex
            assert len(ex.answers) == len(set(ex.answers))
            count[kind] += 1
            count["several"] += len(ex.answers) > 1
            count["none"] += ex.answers == [""]
            if ex.answers != [""]:
                assert all(answer in ex.context for answer in ex.answers), ex
    print(count)
    assert sum(list(count.values())[:4]) == 10_000
    assert min(count.values()) >= 200


def test_prose_tells_the_times_of_its_facts():
    for ex in data.mini("dev", "mix", "obqa", 300, seed=1):
        for f in ex.facts:
            assert f.object in ex.context and f.subject in ex.context
            assert str(f.start // 12) in ex.context, (f, ex.context)


def test_splits_share_no_name():
    names = {}
    for split in ("train", "dev", "test"):
        facts = [f for ex in data.mini(split, "mix", "mix", 3000, seed=3) for f in ex.facts]
        names[split] = {f.subject for f in facts} | {f.object for f in facts}
        assert len(names[split]) > 5000
    for a, b in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not names[a] & names[b], sorted(names[a] & names[b])[:5]


def test_names_are_varied():
    facts = [f for ex in data.mini("train", "mix", "mix", 3000) for f in ex.facts]
    text = "\n".join({f.subject for f in facts} | {f.object for f in facts})
    for shape in (
        r"[čšžéöåęğ]",
        r"\b[A-Z]\. ",
        r"F\.C\.",
        r"\d(?:st|nd|rd|th)\b",
        r"[а-я]{3}",
        r"University of",
        r"-",
        r"'",
        r"\(",
    ):
        assert len(re.findall(shape, text)) > 20, shape


def test_the_seed_decides():
    a, b = (list(data.mini("train", n=50, seed=s)) for s in (5, 5))
    assert a == b
    assert a != list(data.mini("train", n=50, seed=6))
    assert a[:10] == list(data.mini("train", n=10, seed=5))  # more questions do not change the first ones


def test_the_questions_never_change():
    """Whoever names a seed names these questions: scores of other days stay comparable."""
    rows = [repr(ex) for split in ("train", "dev", "test") for ex in data.mini(split, n=300, seed=11)]
    digest = hashlib.sha256("".join(rows).encode()).hexdigest()
    assert digest == "a79933c75ac0cfa7da5744d7c03ca4e6f0fbd0c52955468ee8e1e374f8e8f3ec"


def test_timelines_are_of_all_kinds():
    facts = [ex.facts for ex in data.mini("train", "mix", "reason", 2000)]
    pairs = [(a, b) for fs in facts for o in [sorted(fs, key=lambda f: f.start)] for a, b in itertools.pairwise(o)]
    share = lambda test, rows: sum(map(test, rows)) / len(rows)
    assert share(lambda p: p[0].end < p[1].start, pairs) > 0.1  # gaps
    assert share(lambda p: p[0].end == p[1].start, pairs) > 0.2  # back to back
    assert share(lambda p: p[0].end > p[1].start, pairs) > 0.03  # overlaps
    flat = [f for fs in facts for f in fs]
    assert share(lambda f: f.start == f.end, flat) > 0.03
    assert share(lambda f: f.end == data.OPEN_END, flat) > 0.02
    assert share(lambda f: f.start < 12000, flat) > 0.02  # three-digit years
    assert max(map(len, facts)) >= 12
    assert all(600 * 12 <= f.start <= f.end <= data.OPEN_END for f in flat)


@pytest.mark.parametrize("wrong", [("best", "l2", "reason"), ("train", "l4", "reason"), ("train", "l2", "facts")])
def test_wrong_arguments(wrong):
    with pytest.raises(data.UserError, match="expected one of"):
        list(data.mini(*wrong))


def test_scale_doubles_the_facts_asked_about():
    for setting, least in (("reason", 6), ("obqa", 4)):
        one, two = (list(data.mini("test", "l2", setting, 150, 0, scale=s)) for s in (1, 2))
        asked = lambda ex: sum(f.relation == ex.facts[0].relation for f in ex.facts)
        small, large = (sum(map(asked, rows)) / len(rows) for rows in (one, two))
        assert 1.7 < large / small < 2.1, (small, large)  # a timeline may end with the present
        assert max(map(asked, two)) > max(map(asked, one)) >= least
        assert not {ex.id for ex in one} & {ex.id for ex in two}
    assert list(data.mini("dev", n=20)) == list(data.mini("dev", n=20, scale=1))
