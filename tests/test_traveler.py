"""TRAVELER in evaluate.py: golds, survey, calendar, reading of answers, prompts, official layout, report, command line."""

import dataclasses
import itertools
import json
import math
import random
import re
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import evaluate as ev
import tsqa
from data import Example, Tokenizer, UserError, run

QUESTIONS = ev.traveler_questions()


def unix(text):
    """`2023-09-29 22:18` in UTC -> unix seconds"""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# an independent solver: it sees the wording, the events and the speech time, nothing else


def berlin(time):
    """Local time by the European rule itself: summer from the last Sunday of March to that of October, 01:00 UTC"""
    utc = datetime(1970, 1, 1) + timedelta(seconds=time)

    def last_sunday(month):
        day = datetime(utc.year, month, 31, 1)
        return day - timedelta(days=(day.weekday() + 1) % 7)

    return utc + timedelta(hours=2 if last_sunday(3) <= utc < last_sunday(10) else 1)


VERBS = {
    "watch(?:ed)? a film": "watch film",
    "(?:eat|ate) risotto": "eat risotto",
    "read a book": "read book",
    "danced? salsa": "dance salsa",
    "stored? a wine bottle": "store wine bottle",
    "dr[ia]nk juice": "drink juice",
    "chat(?:ted)? with a friend": "chat with friend",
}
ADVERBS = {
    "just ": "just",
    " recently": "recently",
    " some time ago": "some time ago",
    " a long time ago": "long time ago",
}
SURVEY = {}
for line in (ROOT / "assets" / "traveler_survey.csv").read_text().splitlines()[1:]:
    name, adverb, minutes, p = line.split(",")
    SURVEY.setdefault((name, adverb), []).append((int(minutes), float(p)))


def survey_p(name, adverb, minutes):
    points = sorted(SURVEY[name, adverb])
    if minutes <= points[0][0]:
        return points[0][1]
    for (a, p), (b, q) in itertools.pairwise(points):
        if minutes <= b:
            return p + (q - p) * math.log(minutes / a) / math.log(b / a)
    return points[-1][1]


def first_and_last_day(words, today):
    """The days that the words at the end of a question stand for"""
    one = timedelta(days=1)
    start = today.replace(day=1)
    if words.startswith("on "):
        y, m, d = map(int, words[3:].split("-"))
        return datetime(y, m, d).date(), datetime(y, m, d).date()
    if words.startswith("in ") and "-" in words:
        y, m = map(int, words[3:].split("-"))
        return datetime(y, m, 1).date(), datetime(y + m // 12, m % 12 + 1, 1).date() - one
    if words.startswith("in "):
        return datetime(int(words[3:]), 1, 1).date(), datetime(int(words[3:]), 12, 31).date()
    return {
        "today": (today, today),
        "yesterday": (today - one, today - one),
        "this month": (start, (start + timedelta(days=40)).replace(day=1) - one),
        "last month": ((start - one).replace(day=1), start - one),
        "this year": (today.replace(month=1, day=1), today.replace(month=12, day=31)),
    }[words]


def solve(text, rows, now, today):
    """rows: [(type, subject, location, unix, local)]; today: the local date of now"""
    verb = re.search("|".join(f"(?:{v})" for v in VERBS), text)
    kind = next(k for v, k in VERBS.items() if re.fullmatch(v, verb[0]))
    place, rest = re.fullmatch(r".* in the (living room|kitchen)( .*)?\?", text).groups()
    rows = [r for r in rows if r[0] == kind and r[2] == place]
    subject = re.search(r"\b(?:Did|did|time) (\w+)", text)
    if subject:
        rows = [r for r in rows if r[1] == subject[1]]
    for mark, adverb in ADVERBS.items():
        if mark in text:
            miss = 1.0
            for r in rows:
                miss *= 1 - survey_p(kind, adverb, (now - r[3]) / 60)
            return 1 - miss
    if rest:
        first, last = first_and_last_day(rest.strip(), today)
        rows = [r for r in rows if first <= r[4].date() <= last]
    if text.startswith("Who"):
        return ", ".join(sorted({r[1] for r in rows})) or "nobody"
    if text.startswith("Did"):
        return "yes" if rows else "no"
    if text.startswith("How often"):
        return str(len(rows))
    return max(rows, key=lambda r: r[3])[4].strftime("%Y-%m-%d %H:%M") if rows else "nothing"


def check_all(questions):
    local = {}
    for q in questions:
        for e in q.events:
            if e.time not in local:
                local[e.time] = berlin(e.time)
        rows = [(e.type, e.subject, e.location, e.time, local[e.time]) for e in q.events]
        answer = solve(q.question, rows, q.now, berlin(q.now).date())
        if isinstance(answer, float):
            assert isinstance(q.answer, float) and q.answer == pytest.approx(answer, abs=1e-9), q
        else:
            assert q.answer == answer, q


NOWS = [  # UTC: year, month and leap-day borders, both changes of the clock; the rest is drawn
    unix(t)
    for t in (
        "2023-12-31 23:00",
        "2024-01-01 22:59",
        "2024-02-29 12:00",
        "2024-02-29 23:05",
        "2023-02-28 23:30",
        "2024-03-31 00:59",
        "2024-03-31 01:00",
        "2024-10-27 00:30",
        "2024-10-27 01:30",
        "2026-02-28 22:30",
    )
]


def test_golds_of_the_benchmark_against_brute_force():
    check_all(QUESTIONS)


def test_golds_of_20_other_seeds_and_speech_times_against_brute_force():
    rng = random.Random(0)
    nows = NOWS + [60 * rng.randrange(unix("2000-01-01") // 60, unix("2037-01-01") // 60) for _ in range(10)]
    for seed, now in enumerate(nows, 1):
        questions = ev.traveler_questions(seed, now)
        assert all(q.now == now for q in questions)
        check_all(questions)


# events and questions


def test_numbers_of_questions():
    assert len(QUESTIONS) == len({q.id for q in QUESTIONS}) == 3300
    cells = Counter((q.category, q.length) for q in QUESTIONS)
    assert len(cells) == 33 and set(cells.values()) == {100}
    assert {n for _, n in cells} == {5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}
    templates = {c: Counter(q.template for q in QUESTIONS if q.category == c) for c in ev.CATEGORIES}
    assert templates["vague"] == {"did": 1100} and templates["implicit"] == dict.fromkeys(ev.TEMPLATES, 275)
    assert set(templates["explicit"]) == {"who", "did", "how often"} and min(templates["explicit"].values()) == 363
    assert ev.traveler_questions() == QUESTIONS != ev.traveler_questions(1)


def test_a_set_is_the_beginning_of_the_100_events():
    all_events = QUESTIONS[-1].events
    for q in QUESTIONS:
        assert q.events == all_events[: q.length] and len(q.events) == q.length
    for i, e in enumerate(all_events):
        assert e.type == list(ev.EVENT_TYPES)[i % 7] and e.subject == ("Mary", "Tom", "Ria")[i % 3]
        assert e.location == ("living room", "kitchen")[i % 2]
    assert [e.time for e in all_events] != sorted(e.time for e in all_events)


def test_speech_time_is_the_papers():
    assert berlin(ev.SPEECH_TIME) == datetime(2023, 9, 29, 22, 18) and 0 <= 1696018694 - ev.SPEECH_TIME < 60


@pytest.mark.parametrize("now", [ev.SPEECH_TIME, *NOWS])
def test_events_lie_in_their_windows_and_never_after_the_speech_time(now):
    today = berlin(now).date()
    order = ["today", "yesterday", "this year", "last month", "this month"]
    for seed in range(5):
        for i, e in enumerate(ev.traveler_events(random.Random(seed), 100, now)):
            assert e.time <= now and e.time % 60 == 0
            first, last = first_and_last_day(order[i % 5], today)
            assert first <= berlin(e.time).date() <= last


def test_short_windows_have_events_too():
    midnight = unix("2023-12-31 23:00")  # in Berlin the first minute of a day, a month and a year
    events = ev.traveler_events(random.Random(0), 5, midnight)
    assert [e.time == midnight for e in events] == [True, False, True, False, True]


def test_explicit_questions_ask_half_of_the_time_about_two_years_earlier():
    years = Counter(q.expression[3:7] for q in QUESTIONS if q.category == "explicit")
    assert set(years) == {"2023", "2021"} and abs(years["2023"] - years["2021"]) <= 220
    assert all(q.answer in ("no", "0", "nobody") for q in QUESTIONS if q.expression[3:7] == "2021")
    leap = [ev.Event(t, "Tom", "kitchen", unix("2024-02-29 12:00")) for t in ev.EVENT_TYPES]
    asked = {ev.ask(random.Random(k), leap, "explicit", k, NOWS[2]).expression for k in range(90)}
    assert "on 2022-02-28" in asked and "on 2024-02-29" in asked and "on 2022-02-29" not in asked


def test_questions_of_a_set_differ_where_its_events_allow_it():
    different = {}
    for q in QUESTIONS:
        different.setdefault((q.category, q.length), set()).add(q.question)
    assert all(len(texts) >= 98 for (_, length), texts in different.items() if length >= 20)


def test_yes_and_no_are_balanced():
    for category in "explicit", "implicit":
        yes = np.mean([q.answer == "yes" for q in QUESTIONS if q.category == category and q.template == "did"])
        assert 0.4 < yes < 0.6


def test_wordings():
    texts = {q.question for q in QUESTIONS}
    for form in (
        r"Who ate risotto in the kitchen on 20\d\d-\d\d-\d\d\?",
        r"Did Tom just drink juice in the kitchen\?",
        r"Did \w+ drink juice in the kitchen recently\?",
        r"Did \w+ chat with a friend in the living room a long time ago\?",
        r"How often did \w+ store a wine bottle in the kitchen last month\?",
        r"When was the last time \w+ danced salsa in the living room\?",
        r"Who read a book in the living room in 20\d\d\?",
    ):
        assert any(re.fullmatch(form, t) for t in texts), form


@pytest.mark.parametrize(
    "now, expression, prefix",
    [
        ("2023-09-29 20:18", "today", "2023-09-29"),
        ("2023-09-29 22:18", "today", "2023-09-30"),  # past midnight in Berlin
        ("2023-10-01 12:00", "yesterday", "2023-09-30"),
        ("2024-03-01 12:00", "yesterday", "2024-02-29"),
        ("2023-03-01 12:00", "yesterday", "2023-02-28"),
        ("2023-12-31 23:00", "yesterday", "2023-12-31"),
        ("2023-12-31 22:59", "yesterday", "2023-12-30"),
        ("2023-12-31 23:00", "this month", "2024-01"),
        ("2024-01-15 12:00", "last month", "2023-12"),
        ("2024-03-31 12:00", "last month", "2024-02"),
        ("2023-12-31 22:59", "this year", "2023"),
        ("2023-12-31 23:00", "this year", "2024"),
        ("2024-06-30 22:00", "last month", "2024-06"),  # summer: two hours ahead
        ("2024-06-30 21:59", "last month", "2024-05"),
        ("2023-09-29 20:18", "on 2021-01-02", "2021-01-02"),
        ("2023-09-29 20:18", "in 2021-01", "2021-01"),
        ("2023-09-29 20:18", "in 2021", "2021"),
        ("2023-09-29 20:18", "", ""),
    ],
)
def test_calendar_periods(now, expression, prefix):
    assert ev.prefix(expression, unix(now)) == prefix


def test_local_times_around_both_changes_of_the_clock():
    assert ev.stamp(unix("2024-03-31 00:59")) == "2024-03-31 01:59" and ev.stamp(NOWS[6]) == "2024-03-31 03:00"
    assert ev.stamp(unix("2024-10-27 00:30")) == ev.stamp(unix("2024-10-27 01:30")) == "2024-10-27 02:30"


def test_a_system_without_time_zones_is_told_what_to_install(monkeypatch):
    def missing(name):
        raise ev.zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(ev.zoneinfo, "ZoneInfo", missing)
    with pytest.raises(UserError, match="pip install tzdata"):
        ev.berlin.__wrapped__()


# survey, vague questions


def make(category="implicit", template="did", answer="yes", events=(), **more):
    fields = {"type": "drink juice", "subject": "Tom", "location": "kitchen", "expression": "today"} | more
    return ev.Question("q", category, template, len(events), list(events), "?", answer, ev.SPEECH_TIME, **fields)


def ago(minutes, type="drink juice", subject="Tom", location="kitchen"):
    return ev.Event(type, subject, location, ev.SPEECH_TIME - 60 * minutes)


def test_vague_by_hand():
    # drink juice, just: 0.665 at 30 minutes, 0.314 at 120; an hour lies half way between them in logarithms: 0.4895
    events = [ago(30), ago(60), ago(5, subject="Mary"), ago(5, location="living room"), ago(5, "eat risotto")]
    q = make("vague", events=events, expression="just")
    assert ev.gold(q) == pytest.approx(1 - (1 - 0.665) * (1 - 0.4895)) == pytest.approx(0.8289825)
    assert ev.gold(make("vague", events=events[2:], expression="just")) == 0.0


@pytest.mark.parametrize(
    "name, adverb, minutes, p",
    [
        ("drink juice", "just", 5, 0.972),
        ("drink juice", "just", 1, 0.972),  # clamped
        ("drink juice", "just", 0, 0.972),
        ("drink juice", "just", 2880, 0.0),
        ("drink juice", "just", 10**6, 0.0),
        ("chat with friend", "a long time ago", 10080, 0.333),
        ("watch film", "some time ago", 10**6, 0.643),
        ("watch film", "recently", 120, 0.766),
        ("read book", "recently", math.sqrt(1440 * 2880), 0.495),
    ],
)
def test_likelihoods(name, adverb, minutes, p):
    assert ev.likelihood(name, adverb, minutes) == pytest.approx(p)


def test_survey_is_whole():
    assert set(ev.survey()) == {(t, a.removeprefix("a ")) for t in ev.EVENT_TYPES for a in ev.VAGUE}
    assert all(v.shape == (2, 7) and (0 <= v[1]).all() and (v[1] <= 1).all() for v in ev.survey().values())
    late, early = ("some time ago", "a long time ago"), ("just", "recently")
    for t in ev.EVENT_TYPES:
        assert all(ev.likelihood(t, a, 5000) > ev.likelihood(t, a, 50) for a in late)
        assert all(ev.likelihood(t, a, 5000) < ev.likelihood(t, a, 50) for a in early)


# reading answers

WHO = {
    "Mary": "Mary",
    "mary": "Mary",
    "Mary.": "Mary",
    "**Mary**": "Mary",
    "Mary and Tom": "Mary, Tom",
    "Tom, Mary": "Mary, Tom",
    "Tom & Mary": "Mary, Tom",
    "Mary, Tom, and Ria": "Mary, Ria, Tom",
    "- Mary\n- Tom": "Mary, Tom",
    "1. Mary\n2. Ria": "Mary, Ria",
    "Both Mary and Ria": "Mary, Ria",
    "Only Mary.": "Mary",
    "Mary and Tom watched a film in the living room on 2023-09-29.": "Mary, Tom",
    "nobody": "nobody",
    "Nobody.": "nobody",
    "No one did.": "nobody",
    "None of them": "nobody",
    "None of Mary, Tom and Ria.": "nobody",
    "Neither Mary, Tom, nor Ria did.": "nobody",
    "There are no matching events.": "nobody",
    "Nobody but Mary": "Mary",
    "No one except Tom did.": "Tom",
    "Mary, not Tom": "Mary",
    "Mary did, but Tom did not.": "Mary",
    "Mary did, Tom did not.": "Mary",
    "Tom did not, but Mary did.": "Mary",
    "Mary and Tom. Ria was in the kitchen.": "Mary, Tom",
    "Mary. She watched it at 20:05.": "Mary",
    "Mary and John": "John, Mary",  # extra names are wrong, invented ones too
    "Mary, Bob and Tom": "Bob, Mary, Tom",
    "Tom danced on Friday. Ria danced too. So the answer is Ria and Tom.": "Ria, Tom",
    "Mary danced on 2023-09-01.\nTom danced on 2023-09-02.\n\nAnswer: Mary, Tom": "Mary, Tom",
    "Mary and Tom are candidates.\n\nFinal answer: **Mary**": "Mary",
    "Today, all three did: everyone": "Mary, Ria, Tom",
    "<think>Mary? No, Tom.</think>\nRia": "Ria",
    "Mary danced in the kitchen, Tom in the living room. Therefore, it was Mary.": "Mary",
    '{"answer": "Mary, Tom"}': "Mary, Tom",
    "The answer is: \\boxed{\\text{Tom}}": "Tom",
    "It was Mary and nobody else.": "Mary",
    "Answer: Mary.\nTom only read a book.": "Mary",
    "Mary (2023-09-29 20:05), Tom (2023-09-28 10:00)": "Mary, Tom",
    "Tom or Ria": None,
    "I cannot tell from the list.": None,
    "": None,
    "42": None,
}
DID = {
    "yes": "yes",
    "Yes.": "yes",
    "YES!": "yes",
    "**Yes**, Mary did": "yes",
    "Yes Mary watched one. There is no other event.": "yes",
    "no": "no",
    "No, Tom did not.": "no",
    "No": "no",
    "False": "no",
    "True.": "yes",
    "Nope": "no",
    "Answer: yes": "yes",
    "Answer:\nNo": "no",
    "The answer is no.": "no",
    "The answer to the question is yes, since Tom drank juice at 20:05.": "yes",
    "Tom drank juice on Monday. No other event matches. So yes.": "yes",
    "There is no such event in the list.": "no",
    "No event of Tom is from July, but one is from August, so yes.": "yes",
    "Tom did not drink juice in the kitchen.": "no",
    "Tom didn't.": "no",
    "Tom did.": "yes",
    "Based on the events, Tom did drink juice today.": "yes",
    "Probably not.": "no",
    "**Answer:** Yes": "yes",
    "No. Tom has no event today. Yesterday, yes.": "no",
    "Unclear. No timestamp is given.": None,
    "Never.": "no",
    "yes or no: yes": "yes",
    "Let me think. The list has one event of Mary. It was yesterday.\n\nAnswer: No": "no",
    "First, no. Wait: the event is there. Final answer: Yes": "yes",
    "<think>no no no</think>yes": "yes",
    "\\boxed{No}": "no",
    "I have no idea.": None,
    "I cannot determine whether Tom did.": None,
    "It depends.": None,
    "yes or no": None,
    "<think>yes, because": None,
    "": None,
}
HOW_OFTEN = {
    "2": "2",
    "2.": "2",
    "**2**": "2",
    "02": "2",
    "two": "2",
    "twice": "2",
    "Once.": "1",
    "3 times": "3",
    "Three times.": "3",
    "thrice": "3",
    "zero": "0",
    "0": "0",
    "never": "0",
    "None": "0",
    "Not at all.": "0",
    "Tom did not drink juice this month.": "0",
    "There are no such events.": "0",
    "No times": "0",
    "Tom drank juice 3 times in the kitchen this month.": "3",
    "Tom drank juice twice: on 2023-09-01 and on September 3, 2023 at 10:00.": "2",
    "3 times (once in August and twice in September)": "3",
    "Three times: once in August, twice in September.": "3",
    "1. On 2023-09-01 at 10:00\n2. On 2023-09-02 at 11:00\n\nSo 2 times.": "2",
    "1. On September 1, 2023\n2. On September 3, 2023\nTotal: 2": "2",
    "1 + 2 = 3": "3",
    "3. Tom ate risotto on three evenings.": "3",
    "There are 5 events, of which 2 match.": "2",
    "In 2023, Tom did it once.": "1",
    "Answer: 4": "4",
    "The answer is **two**.": "2",
    "The count is 2, so the final answer is: 2": "2",
    "12": "12",
    "twelve times": "12",
    "2 or 3": None,
    "2.5": None,
    "Between 2 and 3 times": None,
    "2-3 times": None,
    "two to three": None,
    "Tom did it twice.\n\nAnswer:": "2",
    "often": None,
    "1" * 5000: None,
    "": None,
}
WHEN = {
    "2023-09-29 20:05": "2023-09-29 20:05",
    "2023-09-29T20:05": "2023-09-29 20:05",
    "2023-09-29 20:05:00": "2023-09-29 20:05",
    "2023-09-29T20:05:00+02:00": "2023-09-29 20:05",
    "2023-09-29, 20:05.": "2023-09-29 20:05",
    "2023-09-29 at 8:05 PM": "2023-09-29 20:05",
    "September 29, 2023 at 8:05 PM": "2023-09-29 20:05",
    "September 29, 2023 at 8:05 p.m.": "2023-09-29 20:05",
    "On September 29, 2023 at 20:05, Mary watched a film.": "2023-09-29 20:05",
    "Sept. 29th, 2023 at 20:05": "2023-09-29 20:05",
    "29 September 2023, 20:05": "2023-09-29 20:05",
    "the 29th of September 2023 at 20:05": "2023-09-29 20:05",
    "20:05 on September 29, 2023": "2023-09-29 20:05",
    "09/29/2023 20:05": "2023-09-29 20:05",
    "29/09/2023 20:05": "2023-09-29 20:05",
    "29.09.2023 20:05": "2023-09-29 20:05",
    "2023/09/29 20:05": "2023-09-29 20:05",
    "September 29 at 20:05": "2023-09-29 20:05",
    "today at 20:05": "2023-09-29 20:05",
    "Friday, 29 September 2023 at 8.05 pm": "2023-09-29 20:05",
    "2023-9-5 8:05": "2023-09-05 08:05",
    "2023-09-29 at 20h05": "2023-09-29 20:05",
    "Date: 2023-09-29\nTime: 20:05": "2023-09-29 20:05",
    "It was 2023-09-29 20:05. Today is 2023-09-29 22:18.": "2023-09-29 20:05",
    "2023-09-29 22:18": "2023-09-29 22:18",
    "Yesterday, 12:30 AM": "2023-09-28 00:30",
    "12 PM on 2023-09-01": "2023-09-01 12:00",
    "2023-09-01 9:30": "2023-09-01 09:30",
    "Tom did it on 2023-08-01 10:00 and again on 2023-09-29 20:05.": "2023-09-29 20:05",
    "2023-08-01 10:00\n2023-09-29 20:05": "2023-09-29 20:05",
    "2023-09-29 20:05. Before that it was 2023-08-01 10:00.": "2023-09-29 20:05",
    "The last time was 2023-09-29 20:05, before now, 2023-09-29 22:18.": "2023-09-29 20:05",
    "Events: 2023-08-01 10:00, 2023-07-01 11:00.\n\nAnswer: 2023-08-01 10:00": "2023-08-01 10:00",
    "nothing": "nothing",
    "Nothing.": "nothing",
    "Never": "nothing",
    "There is no such event.": "nothing",
    "Tom did not dance in the kitchen.": "nothing",
    "N/A": "nothing",
    "2023-09-29": "2023-09-29",  # without its time it can be read, and is wrong
    "09/03/2023 20:05": None,  # two readings
    "recently": None,
    "20:05": None,
    "": None,
}
TABLE = [
    (template, *item)
    for template, rows in (("who", WHO), ("did", DID), ("how often", HOW_OFTEN), ("when", WHEN))
    for item in rows.items()
]


def test_the_table_is_long_enough():
    assert len(TABLE) >= 80


@pytest.mark.parametrize("template, response, expected", TABLE)
def test_reading_answers(template, response, expected):
    assert ev.read_answer(make(template=template, events=[ago(5)]), response) == expected


def test_every_gold_reads_as_itself():
    for q in QUESTIONS[:2200]:
        assert ev.read_answer(q, q.answer) == q.answer
        assert ev.score_traveler(q, f"The answer is {q.answer}.") == 1.0


def test_scores():
    q = make(template="who", answer="Mary, Tom")
    assert ev.score_traveler(q, "Tom and Mary") == 1.0 == ev.score_traveler(q, "**Mary, Tom**")
    for wrong in "Mary", "Mary, Tom, Ria", "Mary, Tom, Bob", "nobody", "???":
        assert ev.score_traveler(q, wrong) == 0.0
    q = make("vague", answer=0.3)
    assert ev.score_traveler(q, "Yes, Tom did.") == 0.3
    assert ev.score_traveler(q, "no") == ev.score_traveler(q, "who knows") == 0.7  # the card: anything but a yes
    with pytest.raises(TypeError, match="response must be a str, got NoneType"):
        ev.score_traveler(q, None)


def test_reading_survives_anything():
    rng = random.Random(0)
    words = ["Answer:", "yes", "no", "Mary", "2", "2023-09-29", "99:99", "13/13/2023", "<think>", "\\boxed{", "}", "\n"]
    words += ["or", "not", "\u0000", "é", "١", "²", "a.m.", "31 Feb", "0 am", "99 pm", "(", ")", "..", "None", "twice"]
    for _ in range(1500):
        text = " ".join(rng.choices(words, k=rng.randint(0, 12)))
        for template in ev.TEMPLATES:
            read = ev.read_answer(make(template=template), text)
            assert read is None or isinstance(read, str)


# prompts, examples for our model


def test_long_responses_are_read_in_no_time():
    start = time.process_time()
    for piece in (
        "no ",
        "yes. ",
        "Mary and ",
        "1 (",
        "answer to ",
        "2023-09-29 ",
        "a a ",
        "(",
        "\n- ",
        "\\boxed{",
        "12:",
        "*_ ",
    ):
        for template in ev.TEMPLATES:
            ev.read_answer(make(template=template), piece * (20000 // len(piece)))
    assert time.process_time() - start < 5


def test_prompts():
    q = next(q for q in QUESTIONS if q.template == "who" and q.length == 10)
    lines = ev.traveler_prompt(q).split("\n")
    assert lines[0].startswith("Today is the 2023-09-29 22:18.") and lines[-2] == q.question
    rows = [json.loads(line) for line in lines[1:11]]
    assert [tuple(r) for r in rows] == [("Event Type", "Subject", "Location", "Timestamp")] * 10
    assert rows[0]["Timestamp"] == berlin(q.events[0].time).strftime("%Y-%m-%d %H:%M")
    assert "names (Mary, Tom, Ria)" in lines[-1] and "nobody" in lines[-1] and "step" not in lines[-1]
    text = ev.traveler_prompt(q, "sentences", cot=True)
    assert "step by step" in text and "Answer:" in text and '"Subject"' not in text
    e = ev.Event("watch film", "Mary", "living room", unix("2023-09-09 18:05"))
    assert ev.sentence(e) == "On September 9, 2023 at 20:05, Mary watched a film in the living room."
    assert text.count("\nOn ") == 10
    ends = {t: ev.traveler_prompt(make(template=t)) for t in ev.TEMPLATES}
    assert ends["did"].endswith("yes or no.") and ends["how often"].endswith("a number.")
    assert ends["when"].endswith("or nothing.")


def test_our_model_gets_speech_time_question_and_events():
    for q in QUESTIONS[::50]:
        ex = ev.traveler_example(q)
        assert isinstance(ex, Example) and ex.id == q.id
        assert ex.question == f"Today is the 2023-09-29 22:18. {q.question}"
        assert ex.context.count("On ") == q.length and ex.context.count("in the ") == q.length
        if q.category == "vague":
            assert ex.p == q.answer and ex.answers == ["yes" if q.answer >= 0.5 else "no"]
        else:
            assert ex.p is None and ex.answers == [q.answer]


def test_training_examples_are_never_the_benchmark():
    examples = list(ev.traveler_examples(300, 7))
    assert examples == list(ev.traveler_examples(300, 7)) and examples[0] != next(ev.traveler_examples(1, 8))
    assert len({ex.id for ex in examples}) == len({ex.context for ex in examples}) == 300
    short = ev.traveler_examples(3000, 7, lengths=(3,))  # one in 312 would fall into the benchmark's month
    assert all("2023-09-" not in ex.question[:30] for ex in short)
    lengths = {ex.context.count("On ") for ex in examples}
    assert not lengths & set(ev.LENGTHS) and min(lengths) < 10 and max(lengths) > 90
    vague = [ex for ex in examples if ex.p is not None]
    assert 120 < len(vague) < 180 and all(0 <= ex.p <= 1 for ex in vague)
    assert len({ex.question[13:17] for ex in examples}) > 20  # years
    types = [re.match(r"On .*? at ..:.., \w+ (\w+)", ex.context)[1] for ex in examples]
    assert len(set(types)) == 7  # cycles in other orders
    only = list(ev.traveler_examples(20, 0, ("implicit",), (4,)))
    assert all(ex.p is None and ex.context.count("On ") == 4 for ex in only)


def test_golds_of_training_examples_against_brute_force():
    for ex in ev.traveler_examples(300, 3):
        now, text = re.fullmatch(r"Today is the (.{16})\. (.*)", ex.question).groups()
        rows = []
        for day, who, verb, place in re.findall(r"On (.*?), (\w+) (\D*?) in the (.*?)\.", ex.context):
            local = datetime.strptime(day, "%B %d, %Y at %H:%M")
            kind = next(k for v, k in VERBS.items() if re.fullmatch(v, verb))
            rows.append((kind, who, place, local.timestamp(), local))
        local_now = datetime.fromisoformat(now)
        assert all(r[4] <= local_now for r in rows) or local_now.month == 10  # an hour comes twice in October
        if ex.p is None:
            assert solve(text, rows, None, local_now.date()) == ex.answers[0]


def test_events_found_by_their_words_are_all_that_count():
    """Of 99 events what 320 pieces hold (the default of --data traveler) answers as all of them do."""
    tokenizer, rng, sizes = Tokenizer(ROOT / "assets" / "tiny-t5"), random.Random(6), []
    for category in ev.CATEGORIES * 20:
        q = ev.traveler_training_question(rng, category, 99)
        ex = ev.traveler_example(q)
        ((question, kept),) = tsqa.fit_contexts(tokenizer, [(ex.question, ex.context)], 320, "words")
        assert question == ex.question and kept != ex.context
        events = [e for e in q.events if ev.sentence(e) in kept]
        sizes.append(len(events))
        part = ev.gold(dataclasses.replace(q, events=events))
        assert part == q.answer or category == "vague" and part == pytest.approx(q.answer, abs=1e-9)
    assert 8 <= min(sizes) and max(sizes) <= 12


def test_labels_of_training_tasks_against_brute_force():
    """Each event alone is put to the solver: the labels on its pieces have to say the same."""
    tokenizer, rng, seen = Tokenizer(ROOT / "assets" / "tiny-t5"), random.Random(5), Counter()
    for n in (3, 4, 9) * 40 + (70,) * 24:
        task = ev.traveler_task(rng, tokenizer, n)
        text, answer = tokenizer.sp.decode(task.ids), tokenizer.decode(task.target)
        head = re.match(r"question: Today is the (.{16})\. (.*?\?) context: ", text)
        now, question = datetime.fromisoformat(head[1]), head[2]
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids[:-1] == task.ids
        ends, skip = {end: i for i, (_, end) in enumerate(offsets[:-1])}, head.end()
        place, period = re.search(r"in the (living room|kitchen)( .*)?\?", question).groups()
        vague, who = any(mark in question for mark in ADVERBS), re.search(r"\b(?:Did|did|time) (\w+)", question)
        verb = next(k for v, k in VERBS.items() if re.search(v, question))
        for m in re.finditer(r"On (.*?), (\w+) ((\D*?) in the (.*?))(\.)", text[head.end() :]):
            inside = lambda name, k, task=task, ends=ends, m=m, skip=skip: {
                getattr(task, name)[i] for end, i in ends.items() if m.start(k) < end - skip <= m.end(k)
            }
            local = datetime.strptime(m[1], "%B %d, %Y at %H:%M")
            kind = next(k for v, k in VERBS.items() if re.fullmatch(v, m[4]))
            # the solver takes times in UTC seconds for a vague question: only their distance counts
            row = (kind, m[2], m[5], local.replace(tzinfo=UTC).timestamp(), local)
            alone = solve(question, [row], now.replace(tzinfo=UTC).timestamp(), now.date())
            named = kind == verb and m[5] == place and (not who or m[2] == who[1])
            assert inside("named", 3) == {int(named)}
            near = vague and abs(alone - 0.5) < 0.05  # summer time moves the distance by an hour
            if not near:
                counts = alone >= 0.5 if vague else alone not in ("nobody", "no", "0", "nothing")
                assert inside("facts", 6) == {int(counts)}
                seen["counts", counts] += 1
            dates = inside("dates", 1) - {-100}
            if vague or not period:
                assert not dates
            else:
                first, last = first_and_last_day(period.strip(), now.date())
                assert dates == {1 + (local.date() > last) - (local.date() < first)}
                seen["side", dates.pop()] += 1
            golds = inside("golds", 2) if question.startswith("Who") else inside("golds", 1) - {-100}
            if question.startswith("When"):
                assert golds == {int(counts and answer == f"{local:%Y-%m-%d %H:%M}")}
            elif question.startswith("Who"):
                assert golds == {int(counts)} and (not counts or m[2] in answer)
            else:
                assert not golds
            seen["golds", min(golds, default=None)] += 1
    assert len(seen) == 8 and min(seen.values()) > 10, seen


def test_load_bench():
    assert [ex.id for ex in ev.load_bench("traveler")] == [q.id for q in QUESTIONS]
    few = ev.load_bench("traveler", n=40, seed=1)
    assert len(few) == 40 and {ex.id for ex in few} < {q.id for q in QUESTIONS}
    train, dev = (ev.load_bench("traveler", split=s, n=20) for s in ("train", "dev"))
    assert len(train) == 20 and not {ex.context for ex in train} & {ex.context for ex in dev}


# official layout


def official(root, change=None):
    """Writes small files in the official layout; change(events, explicit, referential, vague) edits them before"""
    local = lambda text: unix(text) - 7200
    events = [
        ("watch", "film", "living room", "Mary", local("2023-09-29 20:05")),
        ("eat", "risotto", "kitchen", "Tom", local("2023-09-28 12:00")),
        ("dance", "lively salsa", "kitchen", "Mary", local("2023-09-29 21:48")),
        ("store", "wine bottle", "kitchen", "Tom", local("2023-01-05 12:00") + 3600),
    ]
    keys = "Action", "Object", "Location", "Subject", "Timestamp"
    events = [dict(zip(keys, e, strict=True)) for e in events]
    explicit = [
        {"text": "Who watched a film in the living room on 2023-09-29?", "gt_answers": ["Mary"]},
        {"text": "Did Tom eat risotto in the kitchen in 2021?", "gt_answers": [False]},
        {"text": "How often did Mary dance lively salsa in the kitchen in 2023-09?", "gt_answers": 1},
    ]
    referential = [
        {"text": "Who watched a film in the living room yesterday?", "gt_answers": []},
        {
            "text": "When was the last time Tom stored a wine bottle in the kitchen?",
            "gt_answers": [events[3]["Timestamp"]],
        },
        {"text": "Did Tom eat risotto in the kitchen yesterday?", "gt_answers": "no"},  # a slip: he did
    ]
    vague = [{"text": "Did Mary just dance lively salsa in the kitchen?"}]
    if change:
        change(events, explicit, referential, vague)
    files = {"events/100Events": events, "dataset/explicit/4Events": explicit, "dataset/vague/3Events": vague}
    for name, rows in (files | {"dataset/referential/4Events": referential}).items():
        path = root / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))
    return root


def test_official_layout(tmp_path, capsys):
    questions = ev.read_traveler(official(tmp_path))
    assert [(q.id, q.template, q.length, q.answer) for q in questions[:6]] == [
        ("explicit-4-0", "who", 4, "Mary"),
        ("explicit-4-1", "did", 4, "no"),
        ("explicit-4-2", "how often", 4, "1"),
        ("referential-4-0", "who", 4, "nobody"),
        ("referential-4-1", "when", 4, "2023-01-05 12:00"),
        ("referential-4-2", "did", 4, "no"),
    ]
    assert [q.category for q in questions] == ["explicit"] * 3 + ["implicit"] * 3 + ["vague"]
    assert questions[-1].answer == pytest.approx(0.793) and questions[-1].length == 3  # 30 minutes ago, just
    assert "1 of 7 golds contradict the events" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda e, x, r, v: e[1].pop("Subject"), "100Events.json, object 2: field 'Subject' is missing"),
        (lambda e, x, r, v: e[1].update(Timestamp="now"), "object 2: field 'Timestamp' is missing or of a wrong type"),
        (lambda e, x, r, v: e[0].update(Object="ball"), "object 1: 'ball' is the object of none"),
        (
            lambda e, x, r, v: e[0].update(Timestamp=10**18),
            "100Events.json, object 1: Timestamp 1000000000000000000 is no date",
        ),
        (lambda e, x, r, v: x[2].pop("gt_answers"), "4Events.json, object 3: field 'gt_answers' is missing"),
        (
            lambda e, x, r, v: x[2].update(gt_answers="often"),
            "4Events.json, object 3: gt_answers ['often'] is no answer",
        ),
        (lambda e, x, r, v: r[0].update(text="Why?"), "object 1: the question 'Why?' follows no template"),
        (lambda e, x, r, v: v[0].update(text="Did Mary dance salsa today?"), "3Events.json, object 1: the question"),
        (lambda e, x, r, v: (x.clear(), r.clear(), v.clear()), "dataset: no <explicit|referential|vague>"),
        (lambda e, x, r, v: x.insert(0, 5), "object 1: field 'text' is missing"),
    ],
)
def test_bad_official_files_are_explained(tmp_path, change, message):
    with pytest.raises(UserError) as e:
        ev.read_traveler(official(tmp_path, change))
    assert message in str(e.value) and "\n" not in str(e.value)


def test_missing_or_broken_official_files(tmp_path):
    with pytest.raises(UserError, match="100Events.json: cannot be read as JSON"):
        ev.read_traveler(tmp_path)
    official(tmp_path)
    (tmp_path / "dataset/vague/3Events.json").write_text("[{")
    with pytest.raises(UserError, match="3Events.json: cannot be read as JSON"):
        ev.read_traveler(tmp_path)


# report and command line


def perfect(q):
    return ("yes" if q.answer >= 0.5 else "no") if q.category == "vague" else q.answer


def columns(text):
    """Tables of a text: [[{column: cell}]]"""
    tables = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            tables[-1].append([c.strip() for c in line.strip("| ").split(" | ")])
        elif tables[-1]:
            tables.append([])
    return [[dict(zip(t[0], line, strict=True)) for line in t[2:]] for t in tables if t]


def test_bars():
    results = ev.traveler_results(QUESTIONS, {})
    assert list(results) == ["always yes", "always no", "chance", "best"]
    p = np.array([q.answer for q in QUESTIONS if q.category == "vague"])
    assert results["always yes"]["vague"]["score"] == pytest.approx(p.mean())
    assert results["always no"]["vague"]["score"] == pytest.approx(1 - p.mean())
    assert results["best"]["vague"]["score"] == pytest.approx(np.where(p > 0.5, p, 1 - p).mean())
    assert results["best"]["vague"]["of_best"] == pytest.approx(1) and results["best"]["explicit"]["score"] == 1
    assert results["chance"]["vague"]["score"] == 0.5 and results["chance"]["explicit"]["by_template"]["did"] == 0.5
    for word in "yes", "no":
        for category in "explicit", "implicit":
            share = np.mean([q.answer == word for q in QUESTIONS if q.category == category])
            assert results[f"always {word}"][category]["score"] == pytest.approx(share)
    forty = ev.traveler_results(QUESTIONS[1500:1600], {})["chance"]  # implicit, 40 events: 5 or 6 of each type
    assert list(forty) == ["implicit"] and forty["implicit"]["by_length"] == {40: forty["implicit"]["score"]}
    by_template = forty["implicit"]["by_template"]
    assert by_template["who"] == 1 / 8 and by_template["when"] == pytest.approx(1 / 41)
    assert 1 / 7 <= by_template["how often"] <= 1 / 6


def test_a_few_questions_keep_the_order_of_columns():
    results = ev.traveler_results([QUESTIONS[i] for i in (1001, 3201, 1501, 1505, 2101)], {"a": ["no"] * 5})
    by_length, by_template = columns(ev.traveler_tables(results))
    assert list(by_length[0])[5:] == ["40", "100", "of best", "unreadable"]
    assert list(by_template[0])[2:] == ["did", "recently"] and by_template[0]["recently"] == "-"


def test_results_of_two_systems():
    mixed = ["gibberish" if q.length == 100 else perfect(q) for q in QUESTIONS]
    results = ev.traveler_results(QUESTIONS, {"a": list(map(perfect, QUESTIONS)), "b": mixed})
    assert list(results)[:2] == ["a", "b"]
    a, b = results["a"], results["b"]
    assert a["explicit"]["score"] == a["implicit"]["score"] == a["vague"]["of_best"] == 1.0
    assert a["explicit"]["unreadable"] == 0 and b["implicit"]["unreadable"] == pytest.approx(1 / 11)
    assert b["explicit"]["by_length"][100] == 0 and b["explicit"]["by_length"][90] == 1.0
    assert b["explicit"]["score"] == pytest.approx(10 / 11) and "versus" not in a["explicit"]
    assert b["implicit"]["versus"]["score - a"].startswith("-9.1 (") and b["implicit"]["versus"]["p"] == "< 0.001"
    assert list(b["vague"]["by_template"]) == list(ev.VAGUE)
    by_length, by_template = columns(ev.traveler_tables(results))
    assert [r["category"] for r in by_length[:4]] == ["explicit", "implicit", "vague", "mean"]
    assert by_length[4]["100"] == "0.0" and by_length[4]["score"] == "90.9" and by_length[4]["n"] == "1100"
    assert by_length[3]["unreadable"] == "0.0" and by_length[7]["unreadable"] == "9.1"
    assert by_length[7]["score"] == f"{100 * np.mean([r['score'] for r in b.values()]):.1f}"
    assert by_length[2]["of best"] == "100.0"
    assert by_template[1]["when"] == "100.0" and by_template[2]["just"] != "-" == by_template[2]["who"]


def test_picture():
    scores = {"explicit": {"by_length": {5: 1.0, 10: 0.96, 100: 0.0}}, "vague": {"by_length": {5: 0.94, 100: 0.54}}}
    assert ev.picture("sys", scores).splitlines() == [
        "sys: score against number of events (E explicit, V vague)",
        " 100 |  E   E",
        "  90 |   V",
        "  80 |",
        "  70 |",
        "  60 |",
        "  50 |           V",
        "  40 |",
        "  30 |",
        "  20 |",
        "  10 |",
        "   0 |          E",
        "     +------------",
        "         5  10 100",
    ]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, rows):
    Path(path).write_text("".join(json.dumps(r) + "\n" for r in rows))


def test_any_chat_model_in_two_commands(folder, capsys):
    ev.main(["--bench", "traveler", "--dump-prompts", "prompts.jsonl", "--prompt-style", "sentences", "--cot"])
    out, err = capsys.readouterr()
    prompts = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    assert out == "" and err.startswith("3300 prompts in prompts.jsonl")
    assert [p["id"] for p in prompts] == [q.id for q in QUESTIONS]
    assert prompts[0]["prompt"] == ev.traveler_prompt(QUESTIONS[0], "sentences", True) and set(prompts[0]) == {
        "id",
        "prompt",
    }
    write("answers.jsonl", ({"id": q.id, "prediction": f"So the answer is {perfect(q)}."} for q in QUESTIONS))
    ev.main(["--bench", "traveler", "--predictions", "answers.jsonl", "--out", "out"])
    out, err = capsys.readouterr()
    by_length, by_template = columns(out)
    assert [r["score"] for r in by_length[:2]] == ["100.0", "100.0"] and by_length[2]["of best"] == "100.0"
    assert [r["system"] for r in by_template[::3]] == ["predictions", "always yes", "always no", "chance", "best"]
    assert "predictions: score against number of events" in out and err == ""
    saved = json.loads(Path("out/results.json").read_text())
    assert saved["n"] == 3300 and saved["systems"]["predictions"]["explicit"]["by_length"]["100"] == 1.0
    assert [p.name for p in Path("out").iterdir()] == ["results.json"]  # no temporary file is left


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda r: r.pop(), 'ids missing: "vague-100-99"'),
        (lambda r: r.append(r[0]), 'ids more than once in it: "explicit-5-0"'),
        (lambda r: r.append({"id": "x", "prediction": "yes"}), 'ids in it but not in the bench: "x"'),
        (lambda r: r.__setitem__(1, {"id": "explicit-5-1", "prediction": 3}), 'line 2: "prediction" must be a string'),
        (lambda r: r.__setitem__(1, [1]), "line 2: expected an object"),
    ],
)
def test_bad_predictions(folder, capsys, edit, message):
    rows = [{"id": q.id, "prediction": "yes"} for q in QUESTIONS]
    edit(rows)
    write("p.jsonl", rows)
    with pytest.raises(SystemExit) as e:
        run(lambda: ev.main(["--bench", "traveler", "--predictions", "p.jsonl"]))
    out, err = capsys.readouterr()
    assert e.value.code == 2 and message in err and err.count("\n") == 1 and out == ""


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--dump-prompts", "x"], "--dump-prompts belongs to TRAVELER"),
        (["--traveler-dir", "x"], "--traveler-dir belongs to TRAVELER"),
        (["--bench", "traveler", "--traveler-dir", "absent"], "100Events.json: cannot be read"),
        (["--bench", "traveler", "--prompt-style", "xml"], "invalid choice: 'xml'"),
        (["--bench", "traveler", "--split", "dev"], "--split dev: TRAVELER is a test set"),
        (["--bench", "traveler", "--dump-prompts", "folder"], "cannot write folder"),
    ],
)
def test_bad_arguments(folder, capsys, argv, message):
    Path("folder").mkdir()
    with pytest.raises(SystemExit) as e:
        run(lambda: ev.main(argv))
    assert e.value.code == 2 and message in capsys.readouterr().err


@pytest.fixture
def model(monkeypatch, folder):
    """A model that knows everything, of 600 pieces (words here)"""
    asked = []

    def predict(model, tokenizer, tagger, examples, num_beams=1, batch_size=32, max_new_tokens=0, passages=""):
        asked.extend(examples)
        return [ex.answers[0] for ex in examples]

    tokenizer = SimpleNamespace(encode=lambda text: [*text.split(), "</s>"])
    config = SimpleNamespace(config=SimpleNamespace(max_source=600))
    fake = SimpleNamespace(load_run=lambda name, device=None: (config, tokenizer, None, {}), predict=predict)
    monkeypatch.setitem(sys.modules, "tsqa", fake)
    return asked


def test_our_model(model, capsys):
    ev.main(["--bench", "traveler"])
    out, err = capsys.readouterr()
    assert "python tsqa.py --stage sft --data traveler --model runs/events" in err and "bundled model" in err
    assert [ex.id for ex in model] == [q.id for q in QUESTIONS]
    # 14 to 17 words a sentence: sets of 40 fit into 600, sets of 50 do not
    assert "1800 of 3300 contexts exceed the 600 pieces of tiny" in err
    assert columns(out)[0][0]["score"] == "100.0" and not list(Path().iterdir())


def test_a_run_gets_its_answers_and_results(model, capsys):
    run_dir = Path("runs/t")
    run_dir.mkdir(parents=True)
    (run_dir / "args.json").write_text("{}")
    ev.main(["--bench", "traveler", "--ckpt", "runs/t", "--n", "33", "--seed", "4"])
    rows = [json.loads(line) for line in (run_dir / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == 33 == len(model) and all(r["read"] == r["prediction"] for r in rows)
    assert set(rows[0]) == {"id", "prediction", "question", "read", "answer", "score"}
    assert json.loads((run_dir / "results.json").read_text())["n"] == 33
    ev.main(["--bench", "traveler", "--predictions", "runs/t/predictions.jsonl", "--n", "33", "--seed", "4"])
    assert columns(capsys.readouterr().out)[0][0]["system"] == "runs/t"
    ev.main(["--bench", "traveler", "mini", "--n", "5", "--ckpt", "runs/t"])
    assert (run_dir / "predictions-traveler.jsonl").is_file() and (run_dir / "predictions-mini.jsonl").is_file()


def test_plot(monkeypatch, folder, capsys):
    write("p.jsonl", [{"id": q.id, "prediction": "yes"} for q in QUESTIONS])
    argv = ["--bench", "traveler", "--predictions", "p.jsonl", "--plot"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        ev.main([*argv, "a.svg"])
    assert capsys.readouterr().out == ""  # before the long part
    with pytest.raises(UserError, match="p.gif: expected a name that ends in .svg or .png"):
        monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
        ev.main([*argv, "p.gif"])
    drawn = []
    ax = SimpleNamespace(plot=lambda x, y, label, **_: drawn.append((label, x, y)), set=lambda **_: 0, legend=lambda: 0)
    fig = SimpleNamespace(savefig=lambda f, format: f.write(format.encode()))
    pyplot = SimpleNamespace(subplots=lambda *_, **__: (fig, np.array([[ax] * 3])))
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(use=lambda _: 0, pyplot=pyplot))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    ev.main([*argv, "a.png"])
    assert Path("a.png").read_text() == "png" and len(drawn) == 15
    assert drawn[0][:2] == ("predictions", list(ev.LENGTHS)) and 0 < max(drawn[0][2]) <= 100
