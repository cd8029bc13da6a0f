"""Scores for time-sensitive question answering: exact match, F1, bootstrap intervals, a rule without a model, tables.

    python evaluate.py --ckpt runs/sft runs/ppo
    python evaluate.py --bench traveler

What is here, top to bottom: EM and F1 after SQuAD normalisation, the bootstrap, the interval rule that stands beside
every model on ReasonQA, benches and predictions files, the comparison of checkpoints (by kind of question, by kind of
error), TRAVELER (its questions, how answers are read, its tables), plots, the command line. A model is needed only
inside `main`.

References
- EM and F1: Rajpurkar et al. 2016 (SQuAD), https://arxiv.org/abs/1606.05250
- bootstrap: Efron and Tibshirani 1993, chapters 13 and 16
- TRAVELER: https://arxiv.org/abs/2505.01325
"""

import argparse
import calendar
import csv
import functools
import io
import itertools
import json
import math
import random
import re
import sys
import zoneinfo
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
from tqdm import tqdm

import data
from data import MONTHS, SENTENCE, UserError, normalize, number, table

positive = number(int, 1, 10**9)
MAX_ANSWER = 48  # pieces of a model's answer, its end among them
GENERATED = ("mini", "mini-x2", "traveler")
BENCHES = ("mini", "mini-x2", "tempreason-l2", "tempreason-l3", "timeqa-easy", "timeqa-hard", "traveler")


# ----------------------------------------------------------------------------------------------------------------------
# exact match and F1


def check_types(prediction, golds):
    if not isinstance(prediction, str):
        raise TypeError(f"prediction must be a str, got {type(prediction).__name__}")
    # a bare str would pass as a list of one-letter answers
    if not isinstance(golds, (list, tuple)) or not all(isinstance(g, str) for g in golds):
        raise TypeError(f"golds must be a list of str, got {golds!r:.80}")
    if not golds:
        raise ValueError('golds must not be empty: the gold of an unanswerable question is [""]')


def exact_match(prediction, golds):
    """1.0 if the prediction equals one of the accepted answers after normalisation, else 0.0."""
    check_types(prediction, golds)
    return float(any(normalize(prediction) == normalize(g) for g in golds))


def f1(prediction, golds, v1=False):
    """F1 in [0, 1] over the bags of normalised words, the best over the accepted answers.

    A right empty answer has no word in common with its gold. TimeQA's own scorer (as SQuAD 2.0) gives it 1;
    TempReason's (SQuAD 1.1) gives it 0, which is `v1=True`. Exact match is 1 in both.
    """
    check_types(prediction, golds)
    best = 0.0
    for gold in golds:
        p, g = normalize(prediction).split(), normalize(gold).split()
        same = sum((Counter(p) & Counter(g)).values())
        empty = not p and not g and not v1
        best = max(best, 1.0 if empty else 2 * same / max(len(p) + len(g), 1))  # = 2PR / (P + R)
    return best


# ----------------------------------------------------------------------------------------------------------------------
# how sure is a number


def resampled_means(scores, n_boot, seed):
    """Means of n_boot resamples of the questions, drawn with replacement: (n,) -> (n_boot,)"""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be a non-empty list of finite numbers, got an array of shape {scores.shape}")
    if n_boot < 1:
        raise ValueError(f"n_boot must be at least 1, got {n_boot}")
    rng, n = np.random.default_rng(seed), len(scores)
    step = max(1, 2**22 // n)  # resamples at a time: 4 million draws are 32 MB, whatever the size of the bench
    sizes = [min(step, n_boot - i) for i in range(0, n_boot, step)]
    return np.concatenate([scores[rng.integers(n, size=(size, n))].mean(1) for size in sizes])


def bootstrap_interval(scores, n_boot=10000, seed=0):
    """95 % percentile interval (lo, hi) of the mean of per-question scores, in the units of the scores.

    It says how much the mean moves with the choice of questions; it knows nothing of other training seeds. Where all of n
    scores are 0 or all are 1, resampling sees no spread: there it is the exact interval of a proportion (Clopper and
    Pearson 1934), one end of which is 0.025^(1/n) away from the other.
    """
    lo, hi = map(float, np.percentile(resampled_means(scores, n_boot, seed), [2.5, 97.5]))
    if lo == hi and hi in (0.0, 1.0):
        reach = 0.025 ** (1 / len(scores))
        return (reach, 1.0) if hi else (0.0, 1 - reach)
    return lo, hi


def paired_bootstrap(a, b, n_boot=10000, seed=0):
    """(diff, lo, hi, p) of mean(a) - mean(b), where a[i] and b[i] are the scores of two systems on the same question.

    lo and hi: 95 % interval of the difference. p, two-sided: were the true difference 0, the share of question sets of
    this size on which the two systems would lie at least as far apart as here; measured on resamples of the differences
    shifted to mean 0, never below 1 / (n_boot + 1). Like the interval it knows nothing of other training seeds.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired scores need the same questions, got {a.shape} and {b.shape}")
    diff = float((a - b).mean()) if a.size else 0.0
    means = resampled_means(a - b, n_boot, seed)
    lo, hi = np.percentile(means, [2.5, 97.5])
    extreme = np.abs(means - diff) >= abs(diff) - 1e-12  # sums of 0 and 1 tie often: rounding must not break the ties
    return diff, float(lo), float(hi), float((1 + extreme.sum()) / (n_boot + 1))


# ----------------------------------------------------------------------------------------------------------------------
# the rule: what ReasonQA asks of a reader who can subtract


def named_fact(example):
    """(fact, `before` or `after`) that an L3 question ends with, e.g. `... before Acme?`, or None.

    Looked up among the facts, since names themselves may hold "before" or "after"; the longest name that fits.
    """
    end = example.question.strip().rstrip("?").rstrip()
    found = [(f, w) for f in example.facts for w in ("before", "after") if end.endswith(f" {w} {f.object}")]
    return max(found, key=lambda fw: len(fw[0].object), default=None)


def rule_answer(example):
    """Answer from `example.facts` and the wording of the question alone; "" where the rule finds nothing.

    L2, `... in <Mon, YYYY>?`: the object of a fact that is true in that month (of several, the one that began first).
    L3, `... before|after <object>?`: the nearest fact in time that does not overlap the named one, by start, then by
    end; a fact without length yields to another that starts in the same month. Ties were settled on train and val rows.
    """
    question = example.question.strip().rstrip("?").rstrip()
    if m := re.search(rf" in ({'|'.join(MONTHS)}),? (\d+)$", question):
        t = int(m[2]) * 12 + MONTHS.index(m[1])
        meeting = [f for f in example.facts if f.start <= t <= f.end]
        return min(meeting, key=lambda f: f.start).object if meeting else ""
    if not (named := named_fact(example)):
        return ""
    x, word = named
    others = [f for f in example.facts if f.object != x.object]
    if word == "after":
        later = [f for f in others if f.start >= x.end] or [f for f in others if f.start > x.start]
        return min(later, key=lambda f: (f.start, f.start == f.end, f.end)).object if later else ""
    earlier = [f for f in others if f.end <= x.start] or [f for f in others if f.start < x.start]
    return max(earlier, key=lambda f: (f.start, f.end)).object if earlier else ""


# ----------------------------------------------------------------------------------------------------------------------
# benches, predictions files, tables


def load_bench(bench, setting="reason", split="test", data_dir=None, n=None, seed=0, skip_bad=False):
    """Examples of a bench: n of them drawn by `seed` (in file order), or all when n is None (generated ones: 500)."""
    if bench in ("mini", "mini-x2"):  # x2: contexts of twice the length
        return list(data.mini(split, "mix", setting, n or 500, seed, scale=1 + (bench == "mini-x2")))
    if bench == "traveler":
        if split == "test":
            return draw([traveler_example(q) for q in traveler_questions()], n, seed)
        return list(traveler_examples(n or 500, f"{split} {seed}"))
    if bench.startswith("tempreason") and setting == "mix":
        raise UserError(f"--setting mix exists only for mini: give --setting reason or obqa with --bench {bench}")
    path = data.find_data(data_dir, bench, split)
    timeqa = bench.startswith("timeqa")
    examples = list(data.read_timeqa(path, skip_bad) if timeqa else data.read_tempreason(path, setting, skip_bad))
    if not examples:
        raise UserError(f"{path}: no questions in this file")
    return draw(examples, n, seed)


def draw(items, n, seed):
    if n is None or n >= len(items):
        return items
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), n))]


def first_few(ids):
    return ", ".join(json.dumps(i)[:80] for i in ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def read_predictions(path, ids):
    """Predictions of JSON lines `{"id": ..., "prediction": ...}` in the order of `ids`; other keys are ignored.

    UserError for a file or line that cannot be read, and for ids that are missing, doubled or not in the bench.
    """
    found, doubled = {}, []
    for at, line in data._lines(path):
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as e:
            raise UserError(f"{path}, line {at}: cannot be read as UTF-8 ({e}); save the file as UTF-8") from e
        except (ValueError, RecursionError) as e:
            raise UserError(f"{path}, line {at}: not valid JSON ({e}), expected one object a line") from e
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {at}: expected an object {{"id": ..., "prediction": ...}}, got {row!r:.60}')
        for key in ("id", "prediction"):
            if not isinstance(row.get(key), str):
                got = f"got {row[key]!r:.60}" if key in row else "it is missing"
                raise UserError(f'{path}, line {at}: "{key}" must be a string, {got}')
        if row["id"] in found:
            doubled.append(row["id"])
        found[row["id"]] = row["prediction"]
    known = set(ids)
    unknown, missing = [i for i in found if i not in known], [i for i in ids if i not in found]
    for what, bad in ("more than once in it", doubled), ("in it but not in the bench", unknown), ("missing", missing):
        if bad:
            raise UserError(f"{path}: ids {what}: {first_few(bad)}; give each question of the bench exactly one line")
    return [found[i] for i in ids]


def save_predictions(path, examples, predictions, v1=False):
    """One JSON object a line: id, prediction, question, answers, em, f1; `read_predictions` reads it back."""
    rows = [
        {"id": ex.id, "prediction": p, "question": ex.question, "answers": ex.answers}
        | {"em": exact_match(p, ex.answers), "f1": round(f1(p, ex.answers, v1), 4)}
        for ex, p in zip(examples, predictions, strict=True)
    ]
    data.write_atomic(Path(path), "".join(json.dumps(row) + "\n" for row in rows))


# ----------------------------------------------------------------------------------------------------------------------
# checkpoints compared: by kind of question, by kind of error

BY = ("kind", "century", "facts", "answer", "distance")


def question_cells(example):
    """{one of BY: (place among its siblings, label)}: where a question belongs in each breakdown.

    kind: L2 (a time in the question) or L3 (another answer) and the word before it, for TimeQA the word alone; century:
    of the time asked about; facts: how many the context has; answer: whether there is one; distance: from the time asked
    about to the nearest fact of the same subject and relation that is no answer. TimeQA has no facts.
    """
    words = [m[1].lower() for m in data._TIME.finditer(example.question)]
    named = named_fact(example)
    kind = f"L3 {named[1]}" if named else "L2 " * bool(example.facts) + (words or ["no time"])[-1]
    years = [month // 12 for month in example.time or () if month]  # `before 1921` starts at 0
    century = max(18, years[0] // 100 + 1) if years else 0
    when = f"{data.ordinal(century)} century" if century > 18 else "before 1800" if years else "no year"
    n, first, last = len(example.facts), *(example.time or (0, 0))
    size = next((i for i, top in enumerate((0, 3, 5, 9)) if n <= top), 4)
    asked = [
        f for f in example.facts if (f.subject, f.relation) == (example.facts[0].subject, example.facts[0].relation)
    ]
    wrong = [f for f in asked if example.time and f.object not in example.answers]
    months = min((max(f.start - last, first - f.end, 0) for f in wrong), default=None)
    far = 4 if months is None else next((i for i, top in enumerate((0, 11, 59)) if months <= top), 3)
    distances = ("adjoins", "under 1 year away", "1 to 5 years away", "5 years away or more")
    return {
        "kind": (kind, kind),
        "century": (century, when),
        "facts": (size, f"{('no', '1 to 3', '4 or 5', '6 to 9', '10 or more')[size]} facts"),
        "answer": (0, "unanswerable" if "" in example.answers else "answerable"),
        "distance": (far, f"wrong fact {distances[far]}" if wrong else "no wrong fact"),
    }


def breakdown(examples, by=BY):
    """{"all" or one of `by`: {label: indices of its questions}}; what would have one part only is left out."""
    cells, parts = list(map(question_cells, examples)), {"all": {"all": np.arange(len(examples))}}
    for name in by:
        values = [c[name] for c in cells]
        if len(set(values)) > 1:
            parts[name] = {v[1]: np.flatnonzero([v == x for x in values]) for v in sorted(set(values))}
    return parts


def score_rows(bench, examples, answers, v1=False, parts=None):
    """Table rows of one bench and its `parts` (of `breakdown`), in percent; answers: {system: [prediction]}.

    Later systems get their difference to the first; `rule` and `no answer` do not, being bars to clear and no rivals;
    they stand only in the rows of all questions. Of twenty parts, one has p < 0.05 by chance.
    """
    rivals, rows = [k for k in answers if k not in ("rule", "no answer")], []
    # TimeQA is reported in both conventions: they differ by the share of right abstentions
    flags = [(f, name) for f, name in ((False, "F1"), (True, "F1 v1.1")) if f == v1 or bench.startswith("timeqa")]
    score = lambda how, ps: np.array([how(p, ex.answers) for p, ex in zip(ps, examples, strict=True)])
    em = {k: score(exact_match, ps) for k, ps in answers.items()}
    f1s = {k: [(name, score(functools.partial(f1, v1=f), ps)) for f, name in flags] for k, ps in answers.items()}
    for label, at in itertools.chain(*(part.items() for part in (parts or breakdown(examples, ())).values())):
        for system in answers if label == "all" else rivals:
            lo, hi = bootstrap_interval(em[system][at])
            row = {"system": system, "bench": bench, "questions": label, "n": len(at)}
            row |= {"EM": f"{100 * em[system][at].mean():.1f}", "95 %": f"{100 * lo:.1f} to {100 * hi:.1f}"}
            row |= {column: f"{100 * scores[at].mean():.1f}" for column, scores in f1s[system]}
            if system in rivals[1:]:
                row |= versus("EM", em[system][at], em[rivals[0]][at], rivals[0])
            rows.append(row)
    return rows


def versus(measure, a, b, name):
    """Two cells of a table: how far a system lies above the one called `name` on the same questions, and p."""
    diff, lo, hi, p = paired_bootstrap(a, b)
    shown = f"{100 * diff:+.1f} ({100 * lo:+.1f} to {100 * hi:+.1f})"
    return {f"{measure} - {name}": shown, "p": "< 0.001" if p < 0.001 else f"{p:.3f}"}


KINDS = ("right", "remote", "proximal", "other", "empty", "malformed")


def answer_kinds(example, predictions, cut=()):
    """What each answer to one question is: one of KINDS, in some cases with a reason in brackets.

    remote, proximal: a wrong answer that section 3.2 of the paper calls so and that stands in the context, as
    `data.negatives` finds it. malformed: neither, and cut off before its end (cut: flags, as many as predictions), or
    neither words of the context nor the object of a fact, be it by repeating itself. other: the rest, such as another
    spelling of a right answer, or half of a name.
    """
    kinds, wrong = ["right" if exact_match(p, example.answers) else "" for p in predictions], ((), ())
    if not all(kinds):  # more than any context holds, in halves; both lists repeat themselves to that number
        wrong = [list(dict.fromkeys(found)) for found in data.negatives(example, "both", 2000)]
    known = f" {normalize(' '.join([example.context, *(f.object for f in example.facts)]))} "
    for i, p in enumerate(predictions):
        said, same = normalize(p), lambda texts, p=p: any(data.same_answer(p, x) for x in texts)
        kinds[i] = kinds[i] or (
            "empty" if not said
            else "other (another spelling)" if same(example.answers)
            else "remote" if same(wrong[0])
            else "proximal" if same(wrong[1])
            else "malformed (no end)" if any(cut[i : i + 1])
            else "other" if f" {said} " in known
            else "malformed (repeats)" if re.search(r"(?:^| )(\S+(?: \S+)*?) \1(?: |$)", said[:500])
            else "malformed (not in the context)"
        )  # fmt: skip
    return kinds


def errors(bench, examples, answers, n, cut, seed=0):
    """Text after the paper's Table 8: all answers by kind, then n questions that the first system gets right and a later
    one wrong (n that both get wrong, where there are no such); of a single system, n that it gets wrong. cut: {system: [whether the answer was cut off]}, where known."""
    flags = [cut.get(k, [False] * len(examples)) for k in answers]
    rows = zip(examples, zip(*answers.values()), zip(*flags), strict=True)
    rows = tqdm(rows, desc="errors", unit="q", total=len(examples), leave=False, disable=None)  # slow on long texts
    by_question = [answer_kinds(*row) for row in rows]
    kinds = dict(zip(answers, zip(*by_question), strict=True))
    count = {k: Counter(x.split()[0] for x in found) for k, found in kinds.items()}
    out = [table([{"system": k, "bench": bench} | {x: c[x] for x in KINDS} for k, c in count.items()])]
    first, *later = kinds
    for system in later or [first]:
        right = [not later or k == "right" for k in kinds[first]]
        found = [i for i, k in enumerate(kinds[system]) if right[i] and k != "right"]
        both = [i for i, k in enumerate(kinds[system]) if not right[i] and k != "right"]
        told = f"{first} right, {system} wrong" if later else f"{system} wrong"
        shares = Counter(kinds[system][i].split()[0] for i in found)
        told += f": {len(found)} of {len(examples)} questions"
        told += f" ({', '.join(f'{shares[k]} {k}' for k in KINDS if shares[k])})" * bool(found)
        if later:
            back = sum(b == "right" != a for a, b in zip(kinds[first], kinds[system], strict=True))
            told += f"; {system} right, {first} wrong: {back}"
        out.append(told)
        for i in draw(found, n, seed) + draw(both, max(0, n - len(found)), seed):
            ex = examples[i]
            text = data.select_passages(ex.question, ex.context, 150, lambda t: len(t.split()))
            said = {"id": ex.id, "context": text, "question": ex.question}
            said |= {k: f"{answers[k][i] or '-'}  [{kinds[k][i]}]" for k in answers}
            said["accepted"] = " | ".join(a or "-" for a in ex.answers)
            out.append("\n".join(f"  {k + ':':{3 + max(map(len, said))}}{v}" for k, v in said.items()))
    return "\n\n".join(out)


# ----------------------------------------------------------------------------------------------------------------------
# TRAVELER: events and questions
#
# "seen" = found in the public code of the predecessor (BAMER, same authors) or in the authors' public survey votes;
# "inferred" = our reading of the paper and its card, where the official files were not at hand.

CATEGORIES = ("explicit", "implicit", "vague")
LENGTHS = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)  # seen: the set of length N is the first N of 100 events
SPEECH_TIME = 1696018694 // 60 * 60  # seen: 2023-09-29 22:18 in Berlin; without its 14 seconds, as the prompts state it
SUBJECTS, LOCATIONS = ("Mary", "Tom", "Ria"), ("living room", "kitchen")  # seen
EVENT_TYPES = {  # seen; the survey's name: the verb with its object, the same in the past
    "watch film": ("watch a film", "watched a film"),
    "eat risotto": ("eat risotto", "ate risotto"),
    "read book": ("read a book", "read a book"),
    "dance salsa": ("dance salsa", "danced salsa"),
    "store wine bottle": ("store a wine bottle", "stored a wine bottle"),
    "drink juice": ("drink juice", "drank juice"),
    "chat with friend": ("chat with a friend", "chatted with a friend"),
}
WINDOWS = ("today", "yesterday", "this year", "last month", "this month")  # seen: event i lies in window i mod 5
TEMPLATES = ("who", "did", "how often", "when")  # seen; explicit has no `when`, vague has `did` alone
IMPLICIT = ("today", "yesterday", "this month", "last month", "this year")  # seen
VAGUE = ("just", "recently", "some time ago", "a long time ago")  # seen (survey); their place in a question inferred
FOILS = 0.2  # inferred: share of questions about another subject, type or location than their event's


@dataclass(frozen=True)
class Event:
    """`type` is a key of EVENT_TYPES, `time` in unix seconds."""

    type: str
    subject: str
    location: str
    time: int


@dataclass
class Question:
    """One TRAVELER question. answer: the gold as text; of a vague question p, what a "yes" scores, in [0, 1]."""

    id: str
    category: str
    template: str
    length: int
    events: list[Event]
    question: str
    answer: str | float
    now: int  # speech time, unix seconds
    type: str
    subject: str
    location: str
    expression: str  # `on 2023-09-29`, `in 2023-09`, `in 2023`, one of IMPLICIT or VAGUE, or "" (when)


@dataclass
class TravelerExample(data.Example):
    """An Example that carries p, which `answers` cannot say; None unless vague."""

    p: float | None = None


@functools.cache
def berlin():
    try:
        return zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        raise UserError("TRAVELER needs the time zone Europe/Berlin, absent here; pip install tzdata") from None


@functools.lru_cache(2**16)
def stamp(time):
    """Unix seconds -> `2023-09-29 22:18` in Berlin"""
    return f"{datetime.fromtimestamp(time, berlin()):%Y-%m-%d %H:%M}"


def prefix(expression, now):
    """The beginning of `stamp` that all times of an explicit or implicit expression share: calendar periods in Berlin.

    `in 2023-09` -> `2023-09`; on 2024-03-01 `yesterday` -> `2024-02-29`, `last month` -> `2024-02`; "" -> "".
    """
    if not expression or expression[:3] in ("on ", "in "):
        return expression[3:]
    day = date.fromisoformat(stamp(now)[:10])
    day -= {"yesterday": timedelta(1), "last month": timedelta(day.day)}.get(expression, timedelta(0))
    return day.isoformat()[: 4 if "year" in expression else 7 if "month" in expression else 10]


def traveler_events(rng, n, now, shuffle=False):
    """n Events in the benchmark's cycles (shuffle: in cycles of another order), whole minutes, none after `now`."""

    def start(expression):
        day = datetime.fromisoformat((prefix(expression, now) + "-01-01")[:10])  # `2023-09` -> 2023-09-01
        return int(day.replace(tzinfo=berlin()).timestamp())

    # ours: the current periods end with the speech time (the predecessor's "today" reached beyond it)
    ends = {"yesterday": start("today"), "last month": start("this month")}
    windows = [(start(w), ends.get(w, now + 60)) for w in WINDOWS]
    cycles = [list(c) for c in (EVENT_TYPES, SUBJECTS, LOCATIONS, windows)]
    for cycle in cycles if shuffle else ():
        rng.shuffle(cycle)
    events = []
    for i in range(n):
        *what, (first, end) = (c[i % len(c)] for c in cycles)
        events.append(Event(*what, first + 60 * rng.randrange((end - first) // 60)))
    return events


@functools.cache
def survey():
    """{(event type, adverbial): (log minutes, likelihoods)}, arrays

    assets/traveler_survey.csv: mean votes of about 50 participants per event type (40 to 51 a cell), computed from the
    raw votes that the authors of TRAVELER published with their code.
    """
    cells, path, n = {}, Path(__file__).with_name("assets") / "traveler_survey.csv", 1
    try:
        with open(path, newline="", encoding="utf-8") as f:
            for n, row in enumerate(csv.DictReader(f), 2):
                minutes, p = float(row["minutes_ago"]), float(row["likelihood"])
                if not (0 < minutes < math.inf and 0 <= p <= 1 and row["event"] and row["adverbial"]):
                    raise ValueError("minutes above 0 and a likelihood from 0 to 1 are expected")
                cells.setdefault((row["event"], row["adverbial"]), []).append((math.log(minutes), p))
        if cells.keys() != set(itertools.product(EVENT_TYPES, (a.removeprefix("a ") for a in VAGUE))):
            raise ValueError("other events or adverbials than expected")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as e:
        raise UserError(f"{path}, line {n}: the survey is damaged ({e!r:.200}); restore the file") from e
    return {key: np.array(sorted(points)).T for key, points in cells.items()}


def likelihood(event_type, adverbial, minutes):
    """Chance in [0, 1] that people call an event `minutes` ago `adverbial`, one of VAGUE.

    Ours (the authors' way is not known): linear in log(minutes) between the surveyed times, constant beyond them.
    """
    x, p = survey()[event_type, adverbial.removeprefix("a ")]
    return float(np.interp(math.log(max(minutes, 1e-9)), x, p))


def gold(q):
    """Answer of a Question from its structured fields: text, or p of a vague one (recipe of the benchmark's card)."""
    period = "" if q.category == "vague" else prefix(q.expression, q.now)
    found = [e for e in q.events if (e.type, e.location) == (q.type, q.location) and stamp(e.time).startswith(period)]
    if q.template == "who":
        return ", ".join(sorted({e.subject for e in found})) or "nobody"
    found = [e for e in found if e.subject == q.subject]
    if q.category == "vague":
        return 1.0 - math.prod(1 - likelihood(e.type, q.expression, (q.now - e.time) / 60) for e in found)
    if q.template == "when":
        return stamp(max(e.time for e in found)) if found else "nothing"
    return str(len(found)) if q.template == "how often" else "yes" if found else "no"


def wording(q):
    (verb, past), place = EVENT_TYPES[q.type], f"in the {q.location}"
    if q.template == "when":
        return f"When was the last time {q.subject} {past} {place}?"
    if q.expression == "just":
        return f"Did {q.subject} just {verb} {place}?"
    asked = {"who": f"Who {past}", "did": f"Did {q.subject} {verb}", "how often": f"How often did {q.subject} {verb}"}
    return f"{asked[q.template]} {place} {q.expression}?"


def ask(rng, events, category, k, now, taken=()):
    """Question number k of a category: k fixes template and kind of expression, rng the event that it starts from.

    Ours: tries 20 times to find a wording outside `taken`; short event sets do not have 100 different ones.
    """
    template = {"explicit": TEMPLATES[k % 3], "implicit": TEMPLATES[k % 4], "vague": "did"}[category]
    foil = rng.random() < FOILS
    for _ in range(20):
        e = rng.choice(events)
        asked = {"type": e.type, "location": e.location, "subject": e.subject}
        if foil:
            name = rng.choice(("type", "location", "subject")[: 2 if template == "who" else 3])
            choices = {"type": EVENT_TYPES, "location": LOCATIONS, "subject": SUBJECTS}[name]
            asked[name] = rng.choice([c for c in choices if c != asked[name]])
        expression = VAGUE[k % 4] if category == "vague" else "" if template == "when" else IMPLICIT[k // 4 % 5]
        if category == "explicit":
            when = stamp(e.time)[: (10, 7, 4)[k // 3 % 3]]
            if k // 9 % 2:  # seen: the designed negative asks about two years earlier
                when = f"{int(when[:4]) - 2}{when[4:]}".replace("-02-29", "-02-28")
            expression = f"{'on' if len(when) == 10 else 'in'} {when}"
        q = Question("", category, template, len(events), events, "", "", now, **asked, expression=expression)
        q.question = wording(q)
        if q.question not in taken:
            break
    q.answer = gold(q)
    return q


def traveler_questions(seed=0, now=SPEECH_TIME):
    """The benchmark: 3,300 Questions, 100 for each of 3 categories x 11 lengths (inferred; the sum fits the paper's)."""
    rng, out = random.Random(f"traveler {seed}"), []
    events = traveler_events(rng, LENGTHS[-1], now)
    for category in CATEGORIES:
        for length in LENGTHS:
            taken, first = set(), events[:length]
            for k in range(100):
                q = ask(rng, first, category, k, now, taken)
                taken.add(q.question)
                q.id = f"{category}-{length}-{k}"
                out.append(q)
    return out


def traveler_example(q):
    """A Question as our model reads it; a vague one is answered by the likelier word and carries p."""
    graded = q.category == "vague"
    answer = ("yes" if q.answer >= 0.5 else "no") if graded else q.answer
    question = f"Today is the {stamp(q.now)}. {q.question}"
    return TravelerExample(q.id, question, " ".join(map(sentence, q.events)), [answer], p=q.answer if graded else None)


def traveler_examples(n, seed=0, categories=(*CATEGORIES, "vague"), lengths=None):
    """Yields n TravelerExamples to train on, each about its own events; never the benchmark's own.

    Half of them are vague: how long ago "recently" still is, people's votes say for each type of event, and only these
    questions teach it.
    Other events, other speech times (2010 to 2035, any minute outside the benchmark's month), cycles of another order,
    and other lengths: `lengths` (default: all from 3 to 99 that the benchmark does not use).
    """
    rng = random.Random(f"traveler examples {seed}")
    lengths = tuple(lengths or (k for k in range(3, 100) if k not in LENGTHS))
    for i in range(n):
        q = traveler_training_question(rng, rng.choice(categories), rng.choice(lengths))
        q.id = f"traveler-{seed}-{i}"
        yield traveler_example(q)


def traveler_training_question(rng, category, length):
    now = SPEECH_TIME
    while stamp(now)[:7] == stamp(SPEECH_TIME)[:7]:
        now = 60 * rng.randrange(1262304000 // 60, 2082758400 // 60)
    events = traveler_events(rng, length, now, shuffle=True)
    return ask(rng, events, category, rng.randrange(180), now)  # 180: a multiple of every cycle in `ask`


def traveler_task(rng, tokenizer, length):
    """A question to train on with labels on the pieces of its events (`data.Task`), in the form of stage 1: the
    `length` events that share most words with the question, of up to nine times as many.

    named: the event is of the type and place asked about (and of the subject, unless the question is who). dates: the
    event is before, in or after the period. facts: it counts; of a vague question: people would say yes of it alone.
    golds: its subject (who) or its time (when) is in the answer.
    """
    category = rng.choice(("explicit", "implicit", "implicit", "vague"))  # implicit has the most kinds of questions
    q, task = traveler_training_question(rng, category, rng.randint(length, min(99, 9 * length))), data.Task(tokenizer)
    example = traveler_example(q)
    scores = data.shared_words(example.question, list(map(sentence, q.events)))
    kept = sorted(range(len(q.events)), key=lambda i: -scores[i])[:length]  # as --passages words leaves them
    period = "" if category == "vague" else prefix(q.expression, q.now)
    named = lambda e: (e.type, e.location) == (q.type, q.location) and (q.template == "who" or e.subject == q.subject)
    hits = [e for e in q.events if named(e) and stamp(e.time).startswith(period)]
    last = max((e.time for e in hits), default=None)

    def mark(e, part, text):
        if part == "what":
            return data.marked(text, named=int(named(e)))
        if part == "year" and period:
            at = stamp(e.time)[: len(period)]
            text = data.marked(text, dates=(at > period) - (at < period) + 1)
        elif part == "stop":
            likely = category != "vague" or likelihood(e.type, q.expression, (q.now - e.time) / 60) >= 0.5
            return data.marked(text, facts=int(e in hits and likely))
        if (q.template, part) in (("who", "subject"), ("when", "day"), ("when", "year"), ("when", "clock")):
            return data.marked(text, golds=int(e in hits and (q.template == "who" or e.time == last)))
        return text

    task.put(f"question: {example.question}")
    task.put("context: " + " ".join(sentence(q.events[i], mark) for i in sorted(kept)))
    task.target = tokenizer.pieces(example.answers[0])
    return task


def sentence(e, mark=lambda e, part, text: text):  # seen, as all of the prompts below
    """An event in words; `mark` may change its parts: day, year, clock, subject, what, stop."""
    t, put = datetime.fromtimestamp(e.time, berlin()), functools.partial(mark, e)
    when = f"On {put('day', f'{t:%B} {t.day}')}, {put('year', str(t.year))} at {put('clock', f'{t:%H:%M}')}, "
    what = f"{EVENT_TYPES[e.type][1]} in the {e.location}"
    return when + f"{put('subject', e.subject)} {put('what', what)}{put('stop', '.')}"


def traveler_prompt(q, style="json", cot=False):
    """Prompt for a chat model: speech time, events (`json` objects or `sentences`, one a line), question, restriction."""
    keys = "Event Type", "Subject", "Location", "Timestamp"
    rows = (json.dumps(dict(zip(keys, (e.type, e.subject, e.location, stamp(e.time))))) for e in q.events)
    form = {
        "who": f"the names ({', '.join(SUBJECTS)}), separated by commas, or nobody",
        "did": "yes or no",
        "how often": "a number",
        "when": "a date and its time, as YYYY-MM-DD HH:MM, or nothing",
    }[q.template]
    how = "Think step by step, then write a last line: Answer: followed by" if cot else "Answer only with"
    events = "\n".join(rows if style == "json" else map(sentence, q.events))
    return f"Today is the {stamp(q.now)}. These events happened:\n{events}\n\n{q.question}\n{how} {form}."


def event_type(text):  # the objects differ, so they name the type, whatever the verb: `dance lively salsa`
    return next((t for t in EVENT_TYPES if re.search(rf"(?i)\b{t.split()[-1]}", text)), "")


def official_question(row, id, category, events):
    """Question of an official file, taken apart by its words alone; ValueError with a reason if that fails."""
    text = row["text"].strip()
    look = lambda words: next((w for w in words if re.search(rf"(?i)\b{re.escape(w)}\b", text)), "")
    m = re.search(r"\b(?:on \d{4}-\d\d-\d\d|in \d{4}(?:-\d\d)?)\b", text)
    expression = m[0] if m else look(VAGUE if category == "vague" else IMPLICIT)
    asked = event_type(text), look({e.subject for e in events}), look({e.location for e in events}), expression
    template = next((t for t in TEMPLATES if text.lower().startswith(t)), None)
    if not template or (category == "vague" and not all(asked)):
        raise ValueError(f"the question {text!r:.100} follows no template of TRAVELER")
    q = Question(id, category, template, len(events), events, text, "", SPEECH_TIME, *asked)
    if category == "vague":
        q.answer = gold(q)
        return q
    given = row["gt_answers"] if isinstance(row["gt_answers"], list) else [row["gt_answers"]]
    given = [stamp(g) if template == "when" and isinstance(g, int) else str(g) for g in given]
    q.answer = read_answer(q, ", ".join(given) or "nothing")
    if q.answer is None:
        raise ValueError(f"gt_answers {given!r:.80} is no answer to {text!r:.100}")
    return q


def read_traveler(directory):
    """Questions from files in the official layout; UserError for what is not in it.

    seen: `events/100Events.json` = [{Action, Object, Location, Subject, Timestamp (unix)}], and
    `dataset/<explicit|referential>/<N>Events.json` = [{text, gt_answers}]; inferred: a folder `vague` beside them.
    Its golds are used as given, except p, which comes from the survey; those that `gold` contradicts are counted.
    """

    def load(path, **fields):
        try:
            rows = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as e:
            raise UserError(f"{path}: cannot be read as JSON ({e}); expected TRAVELER's official layout") from e
        rows = rows if isinstance(rows, list) else [rows]
        for i, row in enumerate(rows, 1):
            for name, kind in fields.items():
                if not isinstance(row, dict) or not isinstance(row.get(name), kind):
                    reason = f"field {name!r} is missing or of a wrong type; expected a list of objects"
                    raise UserError(f"{path}, object {i}: {reason} with {', '.join(fields)}")
        return rows

    root, events, out = Path(directory), [], []
    path = root / "events" / "100Events.json"
    for i, row in enumerate(load(path, Action=str, Object=str, Location=str, Subject=str, Timestamp=int), 1):
        if not event_type(row["Object"]):
            raise UserError(f"{path}, object {i}: {row['Object']!r:.60} is the object of none of the seven event types")
        if abs(row["Timestamp"]) > 2**35:  # the year 3058
            raise UserError(f"{path}, object {i}: Timestamp {row['Timestamp']} is no date; expected unix seconds")
        events.append(Event(event_type(row["Object"]), row["Subject"], row["Location"], row["Timestamp"]))
    folders = {"explicit": "explicit", "referential": "implicit", "implicit": "implicit", "vague": "vague"}
    for (folder, category), length in itertools.product(folders.items(), range(1, len(events) + 1)):
        path = root / "dataset" / folder / f"{length}Events.json"
        fields = {"text": str} | ({} if category == "vague" else {"gt_answers": (str, int, list)})
        for i, row in enumerate(load(path, **fields) if path.is_file() else ()):
            try:
                out.append(official_question(row, f"{folder}-{length}-{i}", category, events[:length]))
            except (ValueError, OverflowError, OSError) as e:  # the last two: a time that no calendar holds
                raise UserError(f"{path}, object {i + 1}: {e}; correct the file") from e
    if not out:
        raise UserError(f"{root / 'dataset'}: no <explicit|referential|vague>/<N>Events.json with questions in it")
    if differ := sum(q.answer != gold(q) for q in out if q.expression or q.template == "when"):
        print(f"{root}: {differ} of {len(out)} golds contradict the events; they are used as given", file=sys.stderr)
    return out


# ----------------------------------------------------------------------------------------------------------------------
# TRAVELER: what a chat model's answer says

NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
NUMBERS = {w: i for i, w in enumerate(f"{NUMBERS} seventeen eighteen nineteen twenty".split())}
NUMBERS |= {"once": 1, "twice": 2, "thrice": 3}
NUMBER = rf"(?:(?<![\d.,-])\d{{1,9}}(?![\d-]|[.,]\d)|\b(?<!no )(?:{'|'.join(NUMBERS)})\b)"
MONTH = "|".join([*calendar.month_name[1:], "Sept", *calendar.month_abbr[1:]]).lower()
DAY, CLOCK = r"\b\d{4}-\d\d-\d\d\b", r"\b\d\d:\d\d\b"
EMPTY = (
    r"\b(?:nobody|no[ -]?one|none|nothing|never|neither|not at all|n/a|no (?:\w+ ){0,2}(?:such|events?|persons?|people|"
    r"subjects?|records?|entry|entries|match(?:es)?|times?|instances?|occurrences?|dates?))\b"
)
DENIED = r"\b(?:did|does|do|has|have|had|was|were)(?: not|n't)\b|\bnot (?:found|listed|recorded|mentioned)\b"
MARKER = re.compile(r"(?i)\banswer(?: to [^:.\n]{0,80}?)?\s*(?:\bis\b|would be|should be|:|=)[\s:]*")
FILLER = re.compile(r"(?:and|or|only|just|at|on|of|them|times?|did|so|it|was|is|the|last|a|total|\W)*")


def spell_dates(text, now):
    """Lower case in; dates as 2023-09-29, clock times as 20:05; a missing year is that of the speech time."""

    def named(m):
        month = MONTHS.index(m["month"][:3].title()) + 1
        return f"{m['year'] or stamp(now)[:4]}-{month:02}-{int(m['day']):02}"

    def numeric(m):
        a, b = int(m[1]), int(m[3])
        if m[2] == "/" and a < 13 and b < 13 and a != b:
            return m[0]  # 09/03/2023 has two readings
        day, month = (a, b) if m[2] == "." or a > 12 else (b, a)
        return f"{m[4]}-{month:02}-{day:02}"

    def clock(m):
        hour = int(m[1]) % 12 + 12 * (m[4] == "pm") if m[4] else int(m[1])
        return f"{hour:02}:{m[3] or '00'}" if m[4] or m[2] in (":", "h") else m[0]

    day, month = r"\b(?P<day>\d{1,2})(?:st|nd|rd|th)?\b(?!:)", rf"\b(?P<month>{MONTH})\b\.?"
    for form in rf"{day}(?: of)? {month}", rf"{month} {day}":
        text = re.sub(rf"{form}(?:,? (?P<year>\d{{4}})\b)?", named, text)
    iso = r"\b(\d{4})([-/.])(\d{1,2})\2(\d{1,2})\b"
    text = re.sub(iso, lambda m: f"{m[1]}-{int(m[3]):02}-{int(m[4]):02}", re.sub(r"(\d)t(\d)", r"\1 \2", text))
    text = re.sub(r"\b(\d{1,2})([/.])(\d{1,2})\2(\d{4})\b", numeric, text)
    return re.sub(r"\b(\d{1,2})(?:([:.h])(\d\d))?(?::\d\d)?(?:\s?([ap]m))?\b", clock, text)


def read_who(text, names, now):
    name, found = rf"\b(?i:{'|'.join(map(re.escape, names))})\b", None
    text = re.sub(rf"(?i:{EMPTY}) (?:but|except|other than|besides|else)(?: for)?\b", "", text)  # nobody but Mary
    turn = rf"(?i:;|\b(?:but|while|whereas|although)\b|,\s*(?=(?:and )?(?:not|only|just|{name} did)\b))"
    for clause in re.split(turn, text):
        if re.search(f"(?i){EMPTY}", clause):
            found = found or set()
        elif not re.search(r"\bnot\b|n't\b", clause):  # a clause that denies names those who did not
            if re.search(f"{name} or {name}", clause):
                return None
            people = {n for n in names if re.search(rf"(?i)\b{re.escape(n)}\b", clause)}
            if re.search(r"(?i)\b(?:everyone|everybody|all (?:of them|three))\b", clause):
                people = set(names)
            # an invented name beside a known one counts: extra names are wrong
            people |= set(re.findall(rf"{name}(?=(?:\s*,\s*and|\s*[,&]|\s+and)\s+([A-Z][a-z]+)\b)", clause))
            people |= set(re.findall(rf"\b([A-Z][a-z]+)\s+(?:and|&)\s+{name}", clause))
            found = (found or set()) | people if people else found
    return None if found is None else ", ".join(sorted(found)) or "nobody"


def read_did(text, names, now):
    text = re.sub(r"\bno (?:idea|way|information|clear|definite|exact|timestamp|doubt)\b", "", text)
    if words := re.findall(rf"\b(?:(yes|yep|yeah|true)|no|nope|false)\b|{EMPTY}", text):
        return "yes" if words[-1] else "no"
    if re.search(rf"{DENIED}|\b(?:probably|certainly|definitely|likely) not\b", text):
        return "no"
    hedged = re.search(r"\b(?:whether|if|cannot|can't|unclear|unknown)\b", text)
    return (
        "yes"
        if not hedged and re.search(rf"\b(?:he|she|{'|'.join(map(re.escape, names))}) did\b".lower(), text)
        else None
    )


def read_how_often(text, names, now):
    text = re.sub(rf"{DAY}|{CLOCK}|\b\d{{4}}-\d\d\b|\b(?:19|20)\d\d\b", "", spell_dates(text, now))
    if re.search(rf"{NUMBER} (?:or|to) {NUMBER}|\bbetween {NUMBER} and {NUMBER}|\d\s*[-–]\s*\d", text):
        return None  # 2 or 3, 2-3
    for part in re.sub(r"\([^()]*\)", "", text), text:  # 3 times (once in May, twice in June)
        found = re.findall(rf"\b(?:once|twice|thrice)\b|{NUMBER}(?= times?\b)", part) or re.findall(NUMBER, part)
        if counts := [int(NUMBERS.get(f, f)) for f in found]:
            total = max(counts)  # three times: once in May, twice in June
            return str(total if len(counts) > 1 and 2 * total == sum(counts) else counts[-1])
    return "0" if re.search(rf"{EMPTY}|{DENIED}", text) else None


def read_when(text, names, now):
    text = re.sub(r"\b(today|yesterday)\b", lambda m: prefix(m[1], now), spell_dates(text, now))
    found = re.findall(rf"({DAY})\D{{0,20}}?({CLOCK})|({CLOCK})\D{{0,20}}?({DAY})", text)
    found = [f"{a or d} {b or c}" for a, b, c, d in found]
    if text.strip(" .") != stamp(now):
        found = [f for f in found if f != stamp(now)]  # "... Today is 2023-09-29 22:18."
    if not found and re.search(rf"{EMPTY}|{DENIED}", text):
        return "nothing"
    return (found or re.findall(DAY, text) or [None])[-1]  # a day alone can be read, but is wrong


READERS = {"who": read_who, "did": read_did, "how often": read_how_often, "when": read_when}


def read_answer(q, response):
    """What a response to q says, in the form of the golds (`Mary, Tom`, `yes`, `2`, `2023-09-29 20:05`), or None.

    In this order: what follows the last "answer is" or "Answer:"; a first sentence that is nothing but an answer, or
    begins with yes or no; else the last sentence that can be read, since an explanation ends in its answer.
    """
    if not isinstance(response, str):
        raise TypeError(f"response must be a str, got {type(response).__name__}")
    names = list(dict.fromkeys([*SUBJECTS, *(e.subject for e in q.events)]))
    text = response.rpartition("</think>")[2].partition("<think>")[0]
    text = re.sub(r"\\boxed\{(?:\\text\{)?([^{}]*)\}*", r" answer: \1 ", text)
    text = re.sub(r"[*_`#\"“”{}$]", "", text).replace("’", "'")
    text = re.sub(r"(?i)\b(?:([ap])\.m\b\.?|yes or no\b|yes/no\b)", lambda m: m[1] and m[1] + "m" or "", text)
    text = re.sub(rf"(?i)\b({MONTH})\.", r"\1", text)  # like p.m., a full stop that ends no sentence
    *before, text = MARKER.split(text)
    if not re.search(r"\w", text):  # "Answer:" and nothing behind it
        before, text = [], " ".join(before)
    if "\n" in text.strip():
        text = re.sub(r"(?m)^\s*(?:[-•]|\d+[.)])\s+", "", text)  # marks of a list
    if q.template != "who":  # which knows invented names by their capital letter
        text = re.sub(r"\s*\n\s*(?=time\b)", ", ", text.lower())  # `Date: ...`, `Time: ...` on two lines
    sentences = [s for s in SENTENCE.split(text.strip()) if re.search(r"\w", s)]
    read = lambda s: READERS[q.template](s, names, q.now)
    if q.template == "did":
        if lead := re.match(r"\W*(?:yes|yep|yeah|true|(?:no|nope|false)(?=\s*(?:$|[,.;:!(–—-])))\b", text):
            return read(lead[0])
    else:
        answer = {"who": "|".join(map(re.escape, names)), "how often": NUMBER, "when": f"{DAY}|{CLOCK}"}[q.template]
        rest = [re.sub(f"{EMPTY}|{answer}".lower(), "", spell_dates(s.lower(), q.now)) for s in sentences]
        bare = [bool(FILLER.fullmatch(r)) and not s.endswith(":") for r, s in zip(rest, sentences, strict=True)]
        if bare and all(bare) and q.template == "who":
            return read(", ".join(s.strip(" .,") for s in sentences))  # one name a line
        if bare[:1] == [True] and bare[1:2] != [True] and (first := read(sentences[0])) is not None:
            return first
    return next((a for s in (sentences if before else sentences[::-1]) if (a := read(s)) is not None), None)


def score_read(q, read):
    """Score in [0, 1] of what was read: 1 for the gold, else 0; vague: p for a yes, 1 - p for anything else."""
    if q.category == "vague":
        return q.answer if read == "yes" else 1 - q.answer
    return float(read == q.answer)


def score_traveler(question, response):
    """Score in [0, 1] of one response, by the recipe of the benchmark's card: see `read_answer` and `score_read`."""
    return score_read(question, read_answer(question, response))


# ----------------------------------------------------------------------------------------------------------------------
# TRAVELER: report


def count_cut(examples, tokenizer, max_source):
    """How many examples `tsqa.predict` shortens, because question and context have more than max_source pieces."""
    size = functools.cache(lambda text: len(tokenizer.encode(text)) - 1)  # few contexts, many questions
    return sum(size(f"question: {ex.question}") + size(f"context: {ex.context}") + 1 > max_source for ex in examples)


def save_answers(path, questions, answers):
    """One JSON object a line: id, prediction, question, what was read in it, answer (vague: p), score."""
    rows = []
    for q, a in zip(questions, answers, strict=True):
        read = read_answer(q, a)
        row = {"id": q.id, "prediction": a, "question": q.question, "read": read, "answer": q.answer}
        rows.append(json.dumps(row | {"score": score_read(q, read)}) + "\n")
    data.write_atomic(Path(path), "".join(rows))


def chance(q):
    """Expected score of a guess: yes or no, any set of the subjects, 0 to all events of the type, any event or none."""
    same_type = sum(e.type == q.type for e in q.events)
    guesses = {
        "did": 2,
        "who": 2 ** len({e.subject for e in q.events}),
        "how often": 1 + same_type,
        "when": 1 + q.length,
    }
    return 1 / guesses[q.template]


def traveler_results(questions, answers):
    """{system: {category: n, score, interval, unreadable, by_length, by_template, ...}}; answers: {system: [response]}.

    Below the systems stand the bars: always yes, always no, `chance`, and best (1, vague: max(p, 1 - p)). All are
    shares, not percent.
    """
    reads = {k: [read_answer(q, a) for q, a in zip(questions, rows, strict=True)] for k, rows in answers.items()}
    first = next(iter(reads), None)
    said = dict(reads)
    for word in "yes", "no":
        said[f"always {word}"] = [word if q.template == "did" else None for q in questions]
    scores = {k: [score_read(q, r) for q, r in zip(questions, rows, strict=True)] for k, rows in said.items()}
    scores["chance"] = list(map(chance, questions))
    scores["best"] = [max(q.answer, 1 - q.answer) if q.category == "vague" else 1.0 for q in questions]

    def means(values, rows, key):
        groups = {}
        for i in rows:
            groups.setdefault(key(questions[i]), []).append(values[i])
        return {k: float(np.mean(v)) for k, v in groups.items()}

    out = {system: {} for system in scores}
    for category in CATEGORIES:
        rows = [i for i, q in enumerate(questions) if q.category == category]
        for system, values in scores.items() if rows else ():
            own = [values[i] for i in rows]
            r = {"n": len(rows), "score": float(np.mean(own))}
            r["by_length"] = means(values, rows, lambda q: q.length)
            r["by_template"] = means(values, rows, lambda q: q.expression if q.category == "vague" else q.template)
            if category == "vague":
                r["of_best"] = r["score"] / float(np.mean([scores["best"][i] for i in rows]))
            if system in reads:
                r["interval"] = bootstrap_interval(own)
                r["unreadable"] = float(np.mean([reads[system][i] is None for i in rows]))
                if system != first:
                    r["versus"] = versus("score", own, [scores[first][i] for i in rows], first)
            out[system][category] = r
    return out


def traveler_tables(results):
    """Category x length, category x template (vague: x adverbial), and means, in percent: two Markdown tables."""
    shown = lambda values, key: f"{100 * values[key]:.1f}" if key in values else "-"
    found = [r for categories in results.values() for r in categories.values()]
    lengths = sorted({k for r in found for k in r["by_length"]})
    templates = [k for k in (*TEMPLATES, *VAGUE) if any(k in r["by_template"] for r in found)]
    by_length, by_template = [], []
    for system, categories in results.items():
        for category, r in categories.items():
            head = {"system": system, "category": category}
            row = head | {"n": r["n"], "score": shown(r, "score")}
            row["95 %"] = f"{100 * r['interval'][0]:.1f} to {100 * r['interval'][1]:.1f}" if "interval" in r else "-"
            row |= {str(k): shown(r["by_length"], k) for k in lengths}
            row |= {"of best": shown(r, "of_best"), "unreadable": shown(r, "unreadable")}
            by_length.append(row | r.get("versus", {}))
            by_template.append(head | {k: shown(r["by_template"], k) for k in templates})
        keys = [k for k in ("score", "unreadable") if all(k in r for r in categories.values())]
        mean = {k: np.mean([r[k] for r in categories.values()]) for k in keys}
        by_length.append({"system": system, "category": "mean"} | {k: shown(mean, k) for k in keys})
    return f"{table(by_length)}\n\n{table(by_template)}"


def picture(system, categories):
    """Plain text: one column of letters per length, a letter per category, at the height of its score."""
    lengths = sorted({n for r in categories.values() for n in r["by_length"]})
    lines = [f"{system}: score against number of events ({', '.join(f'{c[0].upper()} {c}' for c in categories)})"]
    for height in range(100, -1, -10):
        line = f"{height:4} |"
        for n in lengths:
            heights = {c[0].upper(): 10 * int(10 * r["by_length"].get(n, -1) + 0.5) for c, r in categories.items()}
            line += "  " + "".join(letter if h == height else " " for letter, h in heights.items())
        lines.append(line.rstrip())
    width = 2 + len(categories)
    lines.append("     +" + "-" * width * len(lengths))
    return "\n".join([*lines, " " * 6 + "".join(f"{n:{width}}" for n in lengths)])


# ----------------------------------------------------------------------------------------------------------------------
# plots


def import_pyplot(path):
    """matplotlib.pyplot for the plot `path`, before anything long; UserError where there is none or no such format"""
    try:
        import matplotlib
    except ImportError:
        raise UserError("--plot needs matplotlib; pip install matplotlib, or leave the flag out") from None
    if Path(path).suffix not in (".svg", ".png"):
        raise UserError(f"--plot {path}: expected a name that ends in .svg or .png")
    make_directory("--plot", Path(path).parent)
    matplotlib.use("Agg")  # no window
    import matplotlib.pyplot

    return matplotlib.pyplot


def training_curves(runs):
    """Panels of the losses, rewards, KL and dev scores in the metrics.jsonl of those `runs` that have one."""
    found = {}  # measure -> run -> steps, values
    for run in runs:
        path = Path(run) / "metrics.jsonl"
        for _, line in data._lines(path) if path.is_file() else ():
            try:
                row = dict(json.loads(line))
            except (ValueError, TypeError):  # a power cut may leave half a line
                continue
            for key, value in row.items():
                measured = isinstance(value, (int, float)) and "step" in row
                if measured and re.fullmatch(r"(?:\w+_)?(?:loss|em|f1)|reward|kl", key):
                    x, y = found.setdefault(key, {}).setdefault(run, ([], []))
                    x.append(row["step"])
                    y.append(value)
    return [(key, "step", "", series) for key, series in found.items()]


def breakdown_panels(bench, parts, rows):
    """Panels of the rows of `score_rows`: EM with its interval, a panel for each breakdown, a series for each system."""
    panels = []
    for name, part in parts.items():
        series = {}  # system -> labels, EM, lower and upper ends
        for r in rows:
            if r["bench"] == bench and r["questions"] in part:
                point = [r["questions"], *map(float, [r["EM"], *r["95 %"].split(" to ")])]
                series.setdefault(r["system"], []).append(point)
        panels.append((f"{bench}: {name}", "EM, %", "", {k: list(zip(*points)) for k, points in series.items()}))
    return panels


def plot(path, panels, pyplot):
    """Draws panels (title, label of x, label of y, {series: (x, y)}) in rows of three into a file, SVG or PNG.

    Series of four, (names, values, lower ends, upper ends), are drawn as bars. An axis in % shows the whole scale.
    pyplot: from `import_pyplot`.
    """
    height = -(-len(panels) // 3)
    fig, axes = pyplot.subplots(height, 3, squeeze=False, figsize=(15, 4 * height), layout="constrained")
    for ax, (title, x_label, y_label, series) in zip(axes.flat, panels):
        for k, (name, (x, y, *ends)) in enumerate(series.items()):
            if not ends:
                ax.plot(x, y, marker="o" if len(x) < 20 else None, label=name)
                continue
            low, high = np.array(y) - ends[0], np.array(ends[1]) - y
            at, width = -np.arange(len(x)), 0.8 / len(series)  # downwards
            ax.barh(at - k * width, y, width, xerr=(low.clip(0), high.clip(0)), label=name)
            ax.set_yticks(at - 0.4 + width / 2, x)
        limits = {f"{axis}lim": (0, 102) for axis, label in (("x", x_label), ("y", y_label)) if "%" in label}
        ax.set(title=title, xlabel=x_label, ylabel=y_label, **limits)
        ax.legend()
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    buffer = io.BytesIO()
    fig.savefig(buffer, format=Path(path).suffix[1:])
    data.write_atomic(Path(path), buffer.getvalue())


# ----------------------------------------------------------------------------------------------------------------------
# command line

EXAMPLES = """examples:
  python evaluate.py --ckpt runs/sft runs/ppo --errors 20 --plot runs.svg
      two runs on 500 generated questions: the differences by kind of question,
      20 questions that only the first gets right, training curves
  python evaluate.py --bench timeqa-hard --data-dir DIR --predictions mine.jsonl
      anybody's answers to an official test file in DIR; no model is loaded
  python evaluate.py --bench traveler --dump-prompts prompts.jsonl
      TRAVELER for any chat model; its answers are scored with --predictions
"""


def make_directory(flag, path):
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"{flag} {path}: cannot make this folder ({e.strerror})") from e


def parse_args(argv=None):
    about = "Score checkpoints or a predictions file, compare them, print one table."
    p = argparse.ArgumentParser(description=about, epilog=EXAMPLES, formatter_class=data.Help)
    add = p.add_argument_group("who answers").add_argument
    ckpt_help = "run directories or models (default: runs/sft, else `tiny`; traveler: `tiny`)"
    add("--ckpt", nargs="+", metavar="DIR", help=ckpt_help)
    add("--predictions", metavar="FILE", help='score these lines {"id": ..., "prediction": ...} too; one --bench only')
    add("--beams", type=positive, default=1, help="beams of the search, 1 = greedy")
    add("--batch-size", type=positive, default=32, help="questions at a time")
    add("--device", help="cpu, cuda or cuda:1 (default: cuda if there is one, else cpu)")
    add = p.add_argument_group("which questions").add_argument
    add("--bench", nargs="+", choices=BENCHES, metavar="BENCH", default=["mini"],
        help=f"one or several of {', '.join(BENCHES)} (default: mini)")  # fmt: skip
    add("--setting", choices=("reason", "obqa", "mix"),
        help="facts, free text, or (mini) both; not for TimeQA and TRAVELER (default: as the first run was trained)")  # fmt: skip
    add("--split", choices=("test", "dev", "train"), default="test", help="of the bench")
    add("--data-dir", metavar="DIR", help="folder of the official files (default: the download cache)")
    add("--skip-bad", action="store_true", help="leave out wrong lines of data files, and count them (default: stop)")
    add("--n", type=positive, help="number of questions, drawn by --seed (default: all; mini: 500)")
    add("--seed", type=number(int, 0, 2**31), default=0, help="of mini's questions and of all draws")
    add = p.add_argument_group("what is shown").add_argument
    add("--by", nargs="*", choices=BY, metavar="KIND", default=list(BY),
        help=f"break down by these; nothing behind it: totals only (default: {' '.join(BY)})")  # fmt: skip
    add("--errors", type=positive, metavar="N",
        help="answers by kind, and N questions that the first system gets right and another one wrong")  # fmt: skip
    add("--plot", metavar="FILE", help="training curves of the runs, and the breakdown, as .svg or .png (matplotlib)")
    add("--squad-v1", action="store_true", help="F1 of a right empty answer is 0, as in SQuAD 1.1 (default: it is 1)")
    add("--out", metavar="DIR", help="folder for predictions and TRAVELER's results.json (default: each run's own one)")
    add = p.add_argument_group("TRAVELER").add_argument
    add("--traveler-dir", metavar="DIR", help="its questions from official files (default: generated)")
    add("--dump-prompts", metavar="FILE", help='only write its prompts, JSON lines {"id": ..., "prompt": ...}')
    add("--prompt-style", choices=("json", "sentences"), default="json", help="events in the prompts")
    add("--cot", action="store_true", help="prompts ask for steps before the answer (default: the answer alone)")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    benches, ckpts = list(dict.fromkeys(args.bench)), list(dict.fromkeys(args.ckpt or []))
    if args.predictions and len(benches) > 1:
        raise UserError("--predictions belongs to one bench: give one --bench")
    for flag in ("traveler_dir", "dump_prompts"):
        if getattr(args, flag) and "traveler" not in benches:
            raise UserError(f"--{flag.replace('_', '-')} belongs to TRAVELER: give --bench traveler with it")
    if args.errors and benches == ["traveler"]:
        raise UserError("--errors knows no kinds of error in TRAVELER: leave it out, or give another --bench too")
    if "traveler" in benches and args.split != "test":
        raise UserError(f"--split {args.split}: TRAVELER is a test set; leave --split out")
    questions = []
    if "traveler" in benches:
        questions = read_traveler(args.traveler_dir) if args.traveler_dir else traveler_questions()
        questions = draw(questions, args.n, args.seed)
    if args.dump_prompts:
        prompts = ({"id": q.id, "prompt": traveler_prompt(q, args.prompt_style, args.cot)} for q in questions)
        data.write_atomic(Path(args.dump_prompts), "".join(json.dumps(row) + "\n" for row in prompts))
        flags = [x for x in ("--traveler-dir", "--n", "--seed") if getattr(args, x[2:].replace("-", "_"))]
        same = "".join(f" {x} {getattr(args, x[2:].replace('-', '_'))}" for x in flags)
        print(
            f'{len(questions)} prompts in {args.dump_prompts}; write a line {{"id": ..., "prediction": ...}} for each, '
            f"then: python evaluate.py --bench traveler{same} --predictions FILE", file=sys.stderr,
        )  # fmt: skip
        return
    if not ckpts and not args.predictions:
        ckpts = ["runs/sft" if Path("runs/sft").is_dir() and benches != ["traveler"] else "tiny"]
        found = "using runs/sft" if ckpts == ["runs/sft"] else "no runs/sft either, using the bundled model"
        if benches == ["traveler"]:  # runs/sft has seen no household events
            found = (
                "using the bundled model; train one: python tsqa.py --stage pretrain --tasks events --start tiny "
                "--steps 4000 --out runs/events && python tsqa.py --stage sft --data traveler --model runs/events "
                "--out runs/traveler"
            )
        print(f"no --ckpt: {found}", file=sys.stderr)  # stdout is for the table

    # whatever can go wrong is tried before the long part: plot, models (one at a time, for the memory), data, folders
    pyplot = import_pyplot(args.plot) if args.plot else None
    panels, loaded = training_curves(ckpts) if args.plot else [], None
    for ckpt in reversed(ckpts):
        import tsqa  # here, because tsqa imports this file

        loaded = tsqa.load_run(ckpt, args.device)
    told, settings = loaded[3] if loaded else {}, {}
    for b in benches:
        alike = b.split("-")[0] == told.get("data", "").split("-")[0]  # of the same kind as the run's own data
        settings[b] = args.setting or (alike and told.get("setting")) or "reason"
        if not args.setting and settings[b] != "reason" and b != "traveler":
            print(f"{b}: --setting {settings[b]}, as {ckpts[0]} was trained", file=sys.stderr)
    examples = {
        b: list(map(traveler_example, questions))
        if b == "traveler"
        else load_bench(b, settings[b], args.split, args.data_dir, args.n, args.seed, args.skip_bad)
        for b in benches
    }
    given = args.predictions and read_predictions(args.predictions, [ex.id for ex in examples[benches[0]]])
    folders = {}  # ckpt -> where its predictions go, or None
    for ckpt in ckpts:
        out = Path(args.out or ckpt)
        if args.out and len(ckpts) > 1:
            out /= re.sub(r"\W+", "-", ckpt).strip("-")
        if args.out:
            make_directory("--out", out)
        elif not (out / "args.json").is_file():
            out = None  # somebody else's model directory, or a name: not ours to write into
            print(f"{ckpt} is not a run directory: give --out to keep its predictions", file=sys.stderr)
        folders[ckpt] = out
    outs = [Path(args.out)] if args.out else [f for f in folders.values() if f]  # where results.json of TRAVELER goes

    answers, cut = ({b: {} for b in benches} for _ in range(2))  # bench -> system -> predictions, whether they were cut
    for ckpt in ckpts:
        model, tokenizer, tagger, told = loaded or tsqa.load_run(ckpt, args.device)
        loaded = None
        for b in benches:
            if b == "traveler" and told.get("data") != "traveler":
                print(f"{ckpt} was not trained on TRAVELER's events; see the README for one that is", file=sys.stderr)
            if b == "traveler" and (over := count_cut(examples[b], tokenizer, model.config.max_source)):
                limit = f"the {model.config.max_source} pieces of {ckpt}"
                print(f"{over} of {len(questions)} contexts exceed {limit}: sentences were left out", file=sys.stderr)
            answers[b][ckpt] = tsqa.predict(
                model,
                tokenizer,
                tagger,
                examples[b],
                num_beams=args.beams,
                batch_size=args.batch_size,
                max_new_tokens=MAX_ANSWER,
                passages=told.get("passages", "relevant"),
            )
            if args.errors:  # an answer that leaves no room for its end
                cut[b][ckpt] = [len(tokenizer.encode(p)) > MAX_ANSWER for p in answers[b][ckpt]]
            if folders[ckpt]:
                name = "predictions.jsonl" if len(benches) == 1 else f"predictions-{b}.jsonl"
                print(f"answers of {ckpt} to {b}: {folders[ckpt] / name}", file=sys.stderr)
                if b == "traveler":
                    save_answers(folders[ckpt] / name, questions, answers[b][ckpt])
                else:
                    save_predictions(folders[ckpt] / name, examples[b], answers[b][ckpt], args.squad_v1)

    rows, texts = [], []
    for b in benches:
        if args.predictions:
            answers[b]["predictions"] = given
        if b == "traveler":
            continue
        if args.errors:
            texts.append(errors(b, examples[b], answers[b], args.errors, cut[b], args.seed))
        if settings[b] == "reason" and not b.startswith("timeqa"):
            answers[b]["rule"] = [rule_answer(ex) for ex in examples[b]]
        if any("" in ex.answers for ex in examples[b]):
            answers[b]["no answer"] = [""] * len(examples[b])  # what saying nothing scores
        parts = breakdown(examples[b], args.by)
        rows += score_rows(b, examples[b], answers[b], args.squad_v1, parts)
        panels += breakdown_panels(b, parts, rows)
    if rows:
        print("\n\n".join([table(rows), *texts]))
    if questions:
        results = traveler_results(questions, answers["traveler"])
        for out in outs:
            saved = {"bench": "traveler", "n": len(questions), "systems": results}
            data.write_atomic(out / "results.json", json.dumps(saved, indent=2) + "\n")
        print("\n".join([traveler_tables(results), *("\n" + picture(k, results[k]) for k in answers["traveler"])]))
        for category in CATEGORIES:
            found = {k: c[category]["by_length"] for k, c in results.items() if category in c}
            series = {k: (list(v), [100 * x for x in v.values()]) for k, v in found.items()}
            panels.append((category, "events", "score, %", series))
    if args.plot:
        plot(args.plot, panels, pyplot)


if __name__ == "__main__":
    data.run(main)
