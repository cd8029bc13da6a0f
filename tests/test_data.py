"""Readers, downloads, passages and batches of data.py. All names are made up."""

import gzip
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import data
from data import UserError

OFFICIAL = ROOT.parent / "shared" / "data"
FACTS = (
    "Bo Rill plays for Ostby F.C. from Jan, 1990 to Mar, 1992. \n "
    "Bo Rill plays for Varn United from Apr, 1992 to Dec, 1995. \n "
    "Bo Rill plays for The Kells from Jan, 1996 to Dec, 2022."
)


def l2(id="L2_Q1", **changes):
    row = {
        "question": "Which team did Bo Rill play for in Jun, 1993?",
        "text_answers": {"text": ["Varn United"]},
        "id": id,
        "fact_context": FACTS,
        "context": "Bo RillBo Rill is a player.He played for Varn United.",
        "none_context": "",
        "neg_answers": ["Ostby F.C.", "Kells", "varn united", "Ostby F.C."],
    }
    return {k: v for k, v in {**row, **changes}.items() if v is not ...}


def timeqa(idx="/wiki/Bo_Rill#P54#0", **changes):
    row = {
        "idx": idx,
        "question": "Which team did Bo Rill play for from 1992 to 1995?",
        "context": "Bo Rill Bo Rill ( born 1970 ) is a player . He played for Varn United .",
        "targets": ["Varn United"],
        "from": [58],
        "end": [69],
        "paragraphs": [],
    }
    return {k: v for k, v in {**row, **changes}.items() if v is not ...}


def jsonl(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def tempreason(path, content=None, setting="reason"):
    path.write_bytes(jsonl(l2()) if content is None else content)
    return list(data.read_tempreason(path, setting))


def months(first, last):
    return data.parse_month(first), data.parse_month(last)


# ---- errors and files


def test_run_turns_errors_into_exit_status(capsys):
    def fail(error):
        raise error

    assert data.run(lambda: 7) == 7
    with pytest.raises(SystemExit) as e:
        data.run(lambda: fail(UserError("x.json, line 3: wrong")))
    assert e.value.code == 2
    assert capsys.readouterr().err == "error: x.json, line 3: wrong\n"
    with pytest.raises(SystemExit) as e:
        data.run(lambda: fail(KeyboardInterrupt()))
    assert e.value.code == 130
    with pytest.raises(ZeroDivisionError):  # a bug of ours keeps its traceback
        data.run(lambda: 1 / 0)


def test_run_prints_no_traceback(tmp_path):
    code = f"import data; data.run(lambda: list(data.read_timeqa({str(tmp_path / 'none.json')!r})))"
    env = {**os.environ, "PYTHONPATH": str(Path(data.__file__).parent)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (out.returncode, out.stdout) == (2, "")
    assert "none.json: cannot be read" in out.stderr
    assert out.stderr.count("\n") == 1


def test_run_ends_quietly_when_nobody_reads():
    code = "import data; data.run(lambda: [print('x' * 10000, flush=True) for _ in range(100)])"
    env = {**os.environ, "PYTHONPATH": str(Path(data.__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, env=env) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_write_atomic(tmp_path, monkeypatch):
    path = tmp_path / "new" / "a.txt"
    data.write_atomic(path, "é\n")
    with open(path, encoding="utf-8") as old:
        data.write_atomic(path, b"two")
        assert old.read() == "é\n"  # replaced, not overwritten: who reads meanwhile gets the old file
    assert path.read_bytes() == b"two"
    monkeypatch.setattr(data.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"a\.txt.*No space"):
        data.write_atomic(path, "three")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["a.txt"]
    monkeypatch.undo()
    with pytest.raises(UserError, match="new"):
        data.write_atomic(tmp_path / "new", "a folder is in the way")
    assert sorted(os.listdir(tmp_path)) == ["new"]


# ---- months, facts, normalisation


@pytest.mark.parametrize(("text", "month"), [("Jan, 1968", 23616), ("Dec, 634", 634 * 12 + 11), ("Mar, 2023", 24278)])
def test_months(text, month):
    assert data.parse_month(text) == month
    assert data.format_month(month) == text


@pytest.mark.parametrize(
    "text", ["", "1968", "Jan 1968", "January, 1968", "jan, 1968", "Jan, 68", "Jan, 19680", " Jan, 1968"]
)
def test_month_errors(text):
    with pytest.raises(UserError, match=re.escape(repr(text))):
        data.parse_month(text)


def test_normalize_order():
    assert data.normalize("  The  Kells' F.C., an A-Team\n") == "kells fc ateam"  # punctuation goes before articles
    assert data.normalize("A. Theron") == "theron"
    assert data.normalize("Ångström – “x”") == "ångström – “x”"  # only ASCII punctuation, as in SQuAD


@pytest.mark.parametrize("joint", [". \n ", ". \n", ".\r\n", "\n", ".\n\n"])
def test_parse_fact_context(joint):
    facts = [
        "A from B plays for C from Jan, 800 to Jan, 800",
        "A from B plays for D from to Rome from Feb, 1801 to Dec, 2022",
    ]
    assert data.parse_fact_context(" " + joint.join(facts) + ". \n ") == [
        ("A from B plays for C", 9600, 9600),
        ("A from B plays for D from to Rome", *months("Feb, 1801", "Dec, 2022")),
    ]


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("Bo holds the position of Member of the 3rd Diet", ("Bo", "holds the position of", "Member of the 3rd Diet")),
        ("Bo, 1st Earl of Os plays for Os F.C.", ("Bo, 1st Earl of Os", "plays for", "Os F.C.")),
        ("Bo works for Who works for Whom", ("Bo", "works for", "Who works for Whom")),
        ("Bo is a member of the The Union", ("Bo", "is a member of the", "The Union")),
        ("Bo attended Os College", ("Bo", "attended", "Os College")),
        ("Os Inn is owned by Bo Rill", ("Os Inn", "is owned by", "Bo Rill")),
        ("Bo Rill is the head coach of Os", ("Os", "is the head coach of", "Bo Rill")),
        ("Bo Rill is the chair of Os", ("Os", "is the chair of", "Bo Rill")),
        ("Bo is the head of the government of Os", ("Os", "is the head of the government of", "Bo")),
        ("Bo is the head of the state of Os", ("Os", "is the head of the state of", "Bo")),
    ],
)
def test_split_statement(statement, parts):
    assert data.split_statement(statement) == parts
    assert " ".join(parts if not parts[1].startswith("is the ") else parts[::-1]) == statement


# ---- TempReason


def test_reason(tmp_path):
    [e] = tempreason(tmp_path / "test_l2.json")
    assert e.id == "L2_Q1"
    assert e.answers == ["Varn United"]
    assert e.context == FACTS.replace("\n ", "")  # one line: T5 has no piece for a line break
    assert e.facts[0] == data.Fact("Bo Rill", "plays for", "Ostby F.C.", *months("Jan, 1990", "Mar, 1992"))
    assert [f.object for f in e.facts] == ["Ostby F.C.", "Varn United", "The Kells"]
    assert e.time == months("Jun, 1993", "Jun, 1993")
    assert e.remote == ["Ostby F.C.", "Kells"]  # never an accepted answer, whatever its case; no doubles
    assert e.proximal == []
    [x] = tempreason(tmp_path / "x.json", jsonl(l2(fact_context=FACTS.rstrip("."), neg_answers=...)))
    assert x.context == e.context
    assert x.remote == []


def test_obqa(tmp_path):
    [e] = tempreason(tmp_path / "test_l2.json", setting="obqa")
    assert e.context == l2()["context"]
    assert len(e.facts) == 3
    [e] = tempreason(tmp_path / "x.json", jsonl(l2(fact_context=...)), setting="obqa")
    assert e.facts == []
    with pytest.raises(UserError, match="setting"):
        tempreason(tmp_path / "x.json", setting="both")


@pytest.mark.parametrize(
    ("question", "answer", "time"),
    [
        ("Which team did Bo Rill play for after Ostby F.C.?", "Varn United", ("Apr, 1992", "Dec, 1995")),
        ("Which team did Bo Rill play for before The Kells?", "Varn United", ("Apr, 1992", "Dec, 1995")),
        ("Which team did Bo Rill play for before Varn United?", "Ostby F.C.", ("Jan, 1990", "Mar, 1992")),
        ("Which team did Bo Rill play for after The Kells?", "Ostby F.C.", ("Feb, 1997", "Mar, 1997")),
        ("Which team did Bo Rill play for after Varn United?", "Ostby F.C.", ("Feb, 1997", "Mar, 1997")),
        ("Which team did Bo Rill play for after Varn United?", "Nowhere", None),
    ],
)
def test_l3_time_is_the_gold_fact(tmp_path, question, answer, time):
    facts = FACTS + "".join(f"\nBo Rill plays for Ostby F.C. from Feb, {y} to Mar, {y}." for y in (1999, 1997))
    row = l2(question=question, text_answers={"text": [answer]}, fact_context=facts)
    [e] = tempreason(tmp_path / "test_l3.json", jsonl(row))
    assert e.time == (time and months(*time))


def test_same_rows_from_every_packing(tmp_path):
    plain = jsonl(l2("a"), l2("b", question="Où était Bo Rill en Jan, 1990?"))
    want = tempreason(tmp_path / "a.json", plain)
    assert [e.id for e in want] == ["a", "b"]
    assert tempreason(tmp_path / "a.json.gz", gzip.compress(plain)) == want
    assert tempreason(tmp_path / "a.json.gzip", gzip.compress(plain)) == want
    assert tempreason(tmp_path / "zipped.json", gzip.compress(plain[:50]) + gzip.compress(plain[50:])) == want
    assert tempreason(tmp_path / "not-zipped.gz", plain) == want
    assert tempreason(tmp_path / "bom.json", b"\xef\xbb\xbf" + plain) == want
    assert tempreason(tmp_path / "crlf.json", plain.replace(b"\n", b"\r\n")) == want
    assert tempreason(tmp_path / "blank.json", b"\n" + plain.replace(b"\n", b"\n \n").rstrip(b"\n")) == want


LINES = jsonl(l2("a")), jsonl(l2("b"))
BAD_ROWS = {  # the second line of the file
    "cut": b'{"question": "Wh\n',
    "no json": b"question,answer\n",
    "html": b"<!doctype html>\n",
    "single quotes": b"{'id': 'b'}\n",
    "array": b"[1, 2]\n",
    "string": b'"text"\n',
    "number": b"5\n",
    "null": b"null\n",
    "two objects": b"{} {}\n",
    "huge number": b'{"id": ' + b"9" * 5000 + b"}\n",
    "deep": b"[" * 100_000 + b"\n",
    "not utf-8": b'{"id": "\xff"}\n',
    "latin-1": '{"id": "Åsa"}\n'.encode("latin-1"),
    "utf-16": '{"id": "b"}\n'.encode("utf-16"),
    "empty object": b"{}\n",
    "no id": jsonl(l2(id=...)),
    "null id": jsonl(l2(id=None)),
    "number id": jsonl(l2(id=12)),
    "blank id": jsonl(l2(id=" ")),
    "same id": jsonl(l2(id="a")),
    "no question": jsonl(l2("b", question=...)),
    "null question": jsonl(l2("b", question=None)),
    "list question": jsonl(l2("b", question=["Who?"])),
    "blank question": jsonl(l2("b", question="")),
    "surrogate": b'{"id": "b", "question": "\\ud800"}\n',
    "no gold": jsonl(l2("b", text_answers=...)),
    "null gold": jsonl(l2("b", text_answers=None)),
    "string gold": jsonl(l2("b", text_answers="Varn United")),
    "gold without text": jsonl(l2("b", text_answers={})),
    "gold list empty": jsonl(l2("b", text_answers={"text": []})),
    "gold not a list": jsonl(l2("b", text_answers={"text": "Varn United"})),
    "null in gold": jsonl(l2("b", text_answers={"text": [None]})),
    "nested gold": jsonl(l2("b", text_answers={"text": [["Varn United"]]})),
    "number gold": jsonl(l2("b", text_answers={"text": [1993]})),
    "blank gold": jsonl(l2("b", text_answers={"text": ["Varn United", " "]})),
    "no facts": jsonl(l2("b", fact_context=...)),
    "null facts": jsonl(l2("b", fact_context=None)),
    "blank facts": jsonl(l2("b", fact_context=" \n ")),
    "fact without time": jsonl(l2("b", fact_context=FACTS + "\nBo Rill plays for Os.")),
    "fact with bare year": jsonl(l2("b", fact_context="Bo plays for Os from 1990 to 1992.")),
    "fact with wrong month": jsonl(l2("b", fact_context="Bo plays for Os from Jam, 1990 to Jan, 1992.")),
    "fact that runs backwards": jsonl(l2("b", fact_context="Bo plays for Os from Feb, 1990 to Jan, 1990.")),
    "fact of unknown form": jsonl(l2("b", fact_context="Bo likes Os from Jan, 1990 to Feb, 1990.")),
    "fact without subject": jsonl(l2("b", fact_context="plays for Os from Jan, 1990 to Feb, 1990.")),
    "null negatives": jsonl(l2("b", neg_answers=None)),
    "string negatives": jsonl(l2("b", neg_answers="Ostby F.C.")),
    "number negatives": jsonl(l2("b", neg_answers=[3])),
}
REASONS = {
    "array": "a JSON list",
    "null": "a JSON NoneType",
    "huge number": "not JSON",
    "deep": "not JSON",
    "not utf-8": "UTF-8",
    "same id": "'id' repeats 'a' of line 1",
    "gold list empty": "'text_answers.text'",
    "nested gold": "'text_answers.text'",
    "number gold": "'text_answers.text'",
    "null question": "'question' is null",
    "fact without time": "'Bo Rill plays for Os.'",
    "fact that runs backwards": "ends before it starts",
    "fact of unknown form": "'Bo likes Os'",
    "null negatives": "'neg_answers'",
    "surrogate": "surrogate",
}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_bad_rows_name_file_line_and_remedy(tmp_path, case, pack):
    with pytest.raises(UserError) as e:
        tempreason(tmp_path / "val_l2.json", pack(LINES[0] + BAD_ROWS[case] + LINES[1]))
    message = str(e.value)
    assert f"{tmp_path / 'val_l2.json'}, line 2: " in message
    assert REASONS.get(case, "expected" if "UTF-8" not in message else "UTF-8") in message
    assert "\n" not in message
    assert len(message) < 600
    assert re.search("correct or delete|expected|save", message)


def test_line_numbers_count_blank_lines(tmp_path):
    with pytest.raises(UserError, match="line 4: "):
        tempreason(tmp_path / "a.json", LINES[0] + b"\n\n{}\n")


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", 1), (b"\n \n", 1), (gzip.compress(b""), 1), (b"\x1f\x8b", 1), (b"\x1f\x8bnonsense", 1)]
    + [(gzip.compress(LINES[0] + LINES[1])[:-8], 3), (gzip.compress(LINES[0] + LINES[1])[:100], 1)]
    + [(gzip.compress(LINES[0])[:-8] + b"\0" * 8, 2), (gzip.compress(LINES[0]) + b"rubbish", 2)]
    + [(gzip.compress(LINES[0])[:40] + b"\xff" * 40, 1)],
)
def test_empty_and_damaged_files(tmp_path, content, line):
    with pytest.raises(UserError, match=rf"dev\.json\.gz, line {line}: ") as e:
        tempreason(tmp_path / "dev.json.gz", content)
    assert "fetch" in str(e.value)


def test_unreadable_paths(tmp_path):
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "a" / "b.json"):
        with pytest.raises(UserError, match=re.escape(str(path))):
            list(data.read_timeqa(path))


def test_limits(tmp_path, monkeypatch):
    content = jsonl(*(l2(str(i)) for i in range(5)))
    size = len(content) // 5
    monkeypatch.setattr(data, "MAX_LINE", size)
    assert len(tempreason(tmp_path / "a.json", content)) == 5
    with pytest.raises(UserError, match=r"a\.json, line 6: .*MiB a line"):
        tempreason(tmp_path / "a.json", gzip.compress(content + jsonl(l2("a longer one"))))
    monkeypatch.setattr(data, "MAX_FILE", size * 4)
    with pytest.raises(UserError, match=r"a\.json, line 5: .*MiB unpacked"):
        tempreason(tmp_path / "a.json", gzip.compress(content))


def test_reading_is_lazy(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(jsonl(l2("a")) + b"broken\n")
    rows = data.read_tempreason(path, "reason")
    assert next(rows).id == "a"
    with pytest.raises(UserError):
        next(rows)


# ---- TimeQA


def test_timeqa(tmp_path):
    path = tmp_path / "dev.easy.json.gzip"
    rows = timeqa(), timeqa("/wiki/x#1", targets=[""]), timeqa("/wiki/x#2", targets=["Os", "Varn United", "Os"])
    path.write_bytes(gzip.compress(jsonl(*rows)))
    a, b, c = data.read_timeqa(path)
    assert (a.id, a.question, a.context) == (rows[0]["idx"], rows[0]["question"], rows[0]["context"])
    assert (a.answers, b.answers, c.answers) == (["Varn United"], [""], ["Os", "Varn United"])
    assert a.time == months("Jan, 1992", "Dec, 1995")
    assert a.facts == a.remote == a.proximal == []


@pytest.mark.parametrize(
    "changes",
    [
        {"idx": ...},
        {"idx": 3},
        {"question": None},
        {"question": " "},
        {"context": ...},
        {"context": ""},
        {"context": []},
    ]
    + [
        {"targets": t}
        for t in (..., None, "", "Os", [], [None], [1], [["Os"]], ["Os", ""], ["", ""] + ["Os"], {"text": ["Os"]})
    ],
)
def test_timeqa_bad_rows(tmp_path, changes):
    path = tmp_path / "dev.easy.json"
    path.write_bytes(jsonl(timeqa("/wiki/x#1"), timeqa(**changes)))
    with pytest.raises(UserError, match=rf"dev\.easy\.json, line 2: field '{next(iter(changes))}' ") as e:
        list(data.read_timeqa(path))
    assert "correct or delete the line" in str(e.value)


END = "Dec, 9999"


@pytest.mark.parametrize(
    ("phrase", "time"),
    [
        ("from 1986 to 1987?", ("Jan, 1986", "Dec, 1987")),
        ("in Apr 1966?", ("Apr, 1966", "Apr, 1966")),
        ("in 1954", ("Jan, 1954", "Dec, 1954")),
        ("in April, 1966", ("Apr, 1966", "Apr, 1966")),
        ("between Sep 1992 and Jan 1996?", ("Sep, 1992", "Jan, 1996")),
        ("between Sep 1992 and 1996?", ("Sep, 1992", "Dec, 1996")),
        ("from Sep 1855 to 1856 who came first?", ("Sep, 1855", "Dec, 1856")),
        ("between the years 1975 and 1982?", ("Jan, 1975", "Dec, 1982")),
        ("that opened in 1912 from 1920 to 1930 and closed in 1950?", ("Jan, 1920", "Dec, 1930")),
        ("that opened in 1912 in Mar 1920?", ("Mar, 1920", "Mar, 1920")),
        ("in early 1930s?", ("Jan, 1930", "Dec, 1934")),
        ("in the late 1920s?", ("Jan, 1925", "Dec, 1929")),
        ("in 1920s?", ("Jan, 1920", "Dec, 1929")),
        ("after Aug 2020?", ("Sep, 2020", END)),
        ("after 1990?", ("Jan, 1991", END)),
        ("since 1990?", ("Jan, 1990", END)),
        ("in Apr 633?", ("Apr, 633", "Apr, 633")),
        ("during dec 1981?", ("Dec, 1981", "Dec, 1981")),
        ("from 1996 to 1987?", ("Jan, 1987", "Dec, 1996")),
        ("in Oslo?", None),
        ("in 1?", None),
        ("of the 1920 club?", None),
    ],
)
def test_question_time(phrase, time):
    assert data.question_time(f"Which team did Bo Rill join {phrase}") == (time and months(*time))


def test_question_time_open_start():
    assert data.question_time("Who led Os before May 1965?") == (0, data.parse_month("Apr, 1965"))
    assert data.question_time("Who led Os until 1965?") == (0, data.parse_month("Dec, 1965"))
    assert data.parse_month(END) == data.LAST_MONTH


# ---- official files and downloads


class Handler(http.server.BaseHTTPRequestHandler):
    hits: ClassVar[list] = []

    def do_GET(self):
        self.hits.append(self.path)
        body = jsonl(l2())
        if "missing" in self.path:
            return self.send_error(404)
        if "html" in self.path:
            body = b"\n <!DOCTYPE html><title>Sign in</title>"
        if "empty" in self.path:
            body = b""
        self.send_response(200)
        if "nosize" not in self.path:
            self.send_header("Content-Length", str(len(body) + 100 * ("short" in self.path)))
        self.end_headers()
        self.wfile.write(body)
        if "slow" in self.path:
            self.wfile.flush()
            time.sleep(1.5)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    Handler.hits = []
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.mark.parametrize("name", ["good.json", "nosize.json"])
def test_download(server, tmp_path, name):
    path = tmp_path / "cache" / name
    data.download(f"{server}/{name}", path)
    assert path.read_bytes() == jsonl(l2())
    assert os.listdir(path.parent) == [name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "404"), ("short", "received [0-9]+ of [0-9]+ bytes"), ("html", "HTML"), ("empty", "empty file")],
)
def test_download_errors(server, tmp_path, name, reason):
    path = tmp_path / "file.json"
    path.write_text("old")
    with pytest.raises(UserError, match=reason) as e:
        data.download(f"{server}/{name}", path, remedy="use --data-dir")
    for part in (f"{server}/{name}", str(path), "use --data-dir"):
        assert part in str(e.value)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_download_checks_sha256(server, tmp_path):
    right = hashlib.sha256(jsonl(l2())).hexdigest()
    data.download(f"{server}/good", tmp_path / "a", sha256=right)
    with pytest.raises(UserError, match="hash"):
        data.download(f"{server}/good", tmp_path / "b", sha256=right[::-1])
    assert os.listdir(tmp_path) == ["a"]


def test_download_gives_up_on_silence(server, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "TIMEOUT", 0.2)
    with pytest.raises(UserError, match="timed out"):
        data.download(f"{server}/slow-short", tmp_path / "a")


def test_find_data_prefers_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tempreason").mkdir()
    for name in ("val_l2.json.gz", "test.hard.json.gzip", "train.easy.json", "tempreason/test_l3.json"):
        (tmp_path / name).write_bytes(b"")
    for name, split, file in [
        ("tempreason-l2", "dev", "val_l2.json.gz"),
        ("tempreason-l3", "test", "tempreason/test_l3.json"),
        ("timeqa-hard", "test", "test.hard.json.gzip"),
        ("timeqa-easy", "train", "train.easy.json"),
    ]:
        assert data.find_data(tmp_path, name, split) == tmp_path / file
    for args in [
        (tmp_path, "timeqa", "dev"),
        (tmp_path, "timeqa-easy", "val"),
        (tmp_path / "no", "timeqa-easy", "dev"),
    ]:
        with pytest.raises(UserError, match="expected"):
            data.find_data(*args)


def test_find_data_downloads_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TSQA_HUB", server + "/hub/")
    monkeypatch.setenv("TSQA_TIMEQA", server + "/timeqa")
    path = data.find_data(None, "tempreason-l2", "dev")
    assert path == tmp_path / "cache" / "val_l2.json"
    assert len(list(data.read_tempreason(path, "reason"))) == 1
    hits = list(Handler.hits)
    assert set(hits) == {"/hub/datasets/tonytan48/TempReason/resolve/main/val_l2.json"}
    assert data.find_data(tmp_path, "tempreason-l2", "dev") == path  # from the cache
    assert Handler.hits == hits
    assert data.find_data(None, "timeqa-hard", "dev").name == "dev.hard.json.gzip"
    assert Handler.hits[-1] == "/timeqa/dev.hard.json.gzip"


def test_find_data_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path))
    monkeypatch.setenv("TSQA_HUB", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(UserError) as e:
        data.find_data(None, "tempreason-l3", "test")
    url = "http://127.0.0.1:9/datasets/tonytan48/TempReason/resolve/main/test_l3.json"
    for part in (url, str(tmp_path / "test_l3.json"), "--data-dir"):
        assert part in str(e.value)


# ---- passages


def article(n=300):
    filler = [f"Line {i} is about the weather of 18{i % 90 + 10} and other things ." for i in range(n)]
    filler[n // 2] = "In 1993 Rill signed a contract with Varn United ."
    filler[n - 20] = "In 1960 Rill senior signed for Ostby ."
    return " ".join(filler)


QUESTION = "Which team did Bo Rill sign for in Jun 1993?"


def words(text):
    return len(text.split())


def test_relevant_passages_survive():
    kept = data.select_passages(QUESTION, article(), 200, words)
    assert "Varn United" in kept
    assert "Varn United" not in data.select_passages(QUESTION, article(), 200, words, keep="first")
    assert 150 < words(kept) <= 200
    sentences = data.SENTENCE.split(article())
    places = [sentences.index(s) for s in data.SENTENCE.split(kept)]
    assert places == sorted(places)  # original order
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("when", "kept", "dropped"),
    [("in Jun 1993", "1993", "1983"), ("from 1960 to 1970", "1960", "1950"), ("after May 1993", "1994", "1960")]
    + [("before May 1975", "1974", "2009"), ("in the late 1960s", "1966", "1985")],
)
def test_times_choose_among_passages(when, kept, dropped):
    context = " ".join(f"In {year} Rill signed for club {year % 7} ." for year in range(1940, 2011))
    out = data.select_passages(f"Which team did Bo Rill sign for {when}?", context, 160, words)
    assert kept in out
    assert dropped not in out


@pytest.mark.parametrize(
    ("when", "first", "second"),
    [("in 1993", "from 1981 to 2006", "in 1981"), ("in 1993", "in 1990", "in 1970"), ("in 1993", "in 1993", "in 1991")]
    + [("from 1980 to 1990", "from 1980 to 1990", "from 1983 to 1985")],
)
def test_times_rank_passages(when, first, second):
    texts = (
        ["Hail ."] * 4
        + [f"Rill was at Os {second} ."]
        + ["Hail ."] * 4
        + [f"Rill was at Os {first} ."]
        + ["Hail ."] * 4
    )
    scores = data._relevance(f"Where did Rill work {when}?", texts)
    assert scores[9] > scores[4] - 4 * 5 / len(texts) + 1e-6  # apart from the bonus for an early place


def test_short_contexts_are_left_alone():
    for keep in data.PASSAGES:
        assert data.select_passages(QUESTION, " a \n b ", 2, words, keep) == " a \n b "
    with pytest.raises(UserError, match="best"):
        data.select_passages(QUESTION, "a b", 2, words, keep="best")


@pytest.mark.parametrize("budget", [1, 7, 60, 61, 199])
@pytest.mark.parametrize("context", [article(), "word " * 500, "a\n" * 500], ids=["article", "one sentence", "lines"])
def test_budget_holds(budget, context):
    assert data.select_passages(QUESTION, context, budget, words, "first").split() == context.split()[:budget]
    assert 0 < words(data.select_passages(QUESTION, context, budget, words)) <= budget
    assert data.select_passages(QUESTION, "x" * 999, 5, len) == "x" * 999  # one word: nothing to choose


def test_words_choose_each_passage_by_itself():
    """Neither its neighbours nor its place nor the year of the question count; of equals the first stay."""
    question = "Today is the 2023-05-02 15:27. Did Ria watch a film in the living room last month?"
    right = [f"On April {d}, 2019, Ria watched a film in the living room." for d in (1, 2)]
    half = "On May 2, 2023, Ria read a book in the living room."
    wrong = "On May 2, 2023, Tom ate risotto in the kitchen."
    context = " ".join([wrong, wrong, half, wrong, wrong, right[0], wrong, wrong, right[1]])
    assert data.select_passages(question, context, 24, words, "words") == " ".join(right)
    assert data.select_passages(question, context, 36, words, "words") == " ".join([half, *right])
    assert data.select_passages(question, context, 13, words, "words") == right[0]


@pytest.mark.parametrize("keep", data.PASSAGES)
def test_count_is_called_once_per_passage(keep):
    calls = [0, 0]

    def count(text):
        calls[0] += 1
        calls[1] += len(text)
        return words(text)

    context = article(2000)
    data.select_passages(QUESTION, context, 200, count, keep)
    assert calls[0] <= 2000 + 10
    assert calls[1] < 3 * len(context)


# ---- batches


LENGTHS = np.random.default_rng(5).lognormal(5, 0.6, 1000).astype(int).clip(10, 512)


@pytest.mark.parametrize(
    "limits", [{"batch_size": 8}, {"batch_size": 32}, {"max_tokens": 4096}, {"batch_size": 4, "max_tokens": 900}]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_cover_and_fit(limits, shuffle):
    out = list(data.batches(LENGTHS, rng=3, shuffle=shuffle, **limits))
    assert sorted(i for b in out for i in b) == list(range(1000))
    padded = [len(b) * max(LENGTHS[b]) for b in out]
    assert 1 - LENGTHS.sum() / sum(padded) < 0.15
    assert max(map(len, out)) <= limits.get("batch_size", 1000)
    assert max(padded) <= limits.get("max_tokens", 10**9)
    assert len(out) <= 1.3 * max(1000 / limits.get("batch_size", 1000), LENGTHS.sum() / limits.get("max_tokens", 10**9))


def test_batches_order():
    def epoch(rng, **kw):
        return list(data.batches(LENGTHS, batch_size=8, rng=rng, **kw))

    assert epoch(1) == epoch(1)
    assert epoch(1) != epoch(2)
    a, b = np.random.default_rng(1), torch.Generator().manual_seed(1)
    for rng, again in ((a, np.random.default_rng(1)), (b, torch.Generator().manual_seed(1))):
        first, second = epoch(rng), epoch(rng)
        assert (first, second) == (epoch(again), epoch(again))
        assert len({frozenset(x) for x in first} & {frozenset(x) for x in second}) < 30  # other companions, too
        means = [LENGTHS[x].mean() for x in first]
        assert abs(np.corrcoef(range(len(means)), means)[0, 1]) < 0.3  # lengths come in no order
    assert epoch(1, shuffle=False) == epoch(2, shuffle=False)


def test_batches_edges():
    assert list(data.batches([], batch_size=3)) == []
    assert sorted(data.batches([900, 1, 1], max_tokens=10)) == [[0], [1, 2]]
    for limits in ({}, {"batch_size": 0}, {"max_tokens": 0}, {"max_tokens": -5}):
        with pytest.raises(UserError, match="expected"):
            list(data.batches([1], **limits))


def test_pad():
    ids, mask = data.pad([[5, 6, 1], [7, 1], []])
    assert ids.tolist() == [[5, 6, 1], [7, 1, 0], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert ids.dtype == mask.dtype == torch.int64
    assert data.pad([[1], [2, 3]], value=-100)[0].tolist() == [[1, -100], [2, 3]]
    assert data.pad([[], []])[0].shape == (2, 0)


# ---- the public files, where somebody has them


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the public files are not here")
def test_public_files():
    for name in ("tempreason-l2", "tempreason-l3", "timeqa-easy", "timeqa-hard"):
        path = data.find_data(OFFICIAL, name, "dev")
        rows = list(data.read_timeqa(path) if "timeqa" in name else data.read_tempreason(path, "reason"))
        assert len(rows) > 50
        for e in rows:
            if "tempreason" in name:
                assert len({(f.subject, f.relation) for f in e.facts}) == 1  # the object is the part that varies
                assert set(e.answers) <= {f.object for f in e.facts}
                assert e.time is not None
        if "timeqa" in name:
            asked = [e for e in rows if e.answers != [""]]
            for keep, low, high in (("first", 0.0, 0.7), ("relevant", 0.8, 1.0)):
                short = [
                    data.select_passages(e.question, e.context, 512, lambda t: int(1.4 * len(t.split())), keep)
                    for e in asked
                ]
                share = np.mean([any(a in s for a in e.answers) for e, s in zip(asked, short, strict=True)])
                assert low <= share <= high
