"""What is meant to break it: bad data, hostile weights, bad downloads, numbers that run away, odd inputs, wrong use.

Whatever comes in, what comes out is a good result or one sentence that names the file and, where there are lines, the line.
"""

import contextlib
import functools
import gzip
import hashlib
import http.server
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

import data
import evaluate
import ppo
import reward
import tsqa
from data import Example, TimeTagger, Tokenizer, UserError

ROOT = Path(__file__).resolve().parents[1]


# ----------------------------------------------------------------------------------------------------------------------
# bad data


@functools.cache
def good_rows():
    """Rows in both official layouts and a predictions file, made of `mini`."""
    rows = {"tempreason": [], "timeqa": [], "predictions": []}
    for ex in data.mini("dev", "mix", "reason", 12, seed=5):
        facts = " \n ".join(f"{statement}" for statement in re.split(r"(?<=\d\d\d\.) (?=[^a-z])", ex.context))
        answers = {"text": ex.answers, "answer_start": [0]}
        rows["tempreason"].append(
            {
                "id": ex.id,
                "question": ex.question,
                "text_answers": answers,
                "fact_context": facts,
                "context": "Long. " * 9,
            }
            | {"none_context": "", "neg_answers": [f.object for f in ex.facts][:2]}
        )
    for ex in data.mini("dev", "l2", "obqa", 12, seed=5):
        rows["timeqa"].append(
            {"idx": f"/wiki/{ex.id}#P54", "question": ex.question, "context": ex.context, "targets": ex.answers}
            | {"from": [0], "end": [5], "paragraphs": [{"title": "A", "text": "B"}]}
        )
        rows["predictions"].append({"id": ex.id, "prediction": ex.answers[0], "em": 1.0})
    return rows


READERS = {
    "tempreason": lambda path, **how: list(data.read_tempreason(path, "reason", **how)),
    "obqa": lambda path, **how: list(data.read_tempreason(path, "obqa", **how)),
    "timeqa": lambda path, **how: list(data.read_timeqa(path, **how)),
    "predictions": lambda path: evaluate.read_predictions(path, [row["id"] for row in good_rows()["predictions"]]),
}
DEEP = "[" * 100_000
MEGABYTE = "Bo plays for Os in Jan, 1990. " * 35_000
RAW = "raw"  # marks JSON text that json.dumps would not write


def odd_value(rng):
    text = rng.choice(
        [
            "",
            " ",
            "\u202e\u2066right to left",
            "\u200b",
            "\u200bzero\ufeffwidth\u00ad",
            "\0",
            "\u2028",
            "a\u0300" * 500,
            "Ａ" * 30,
        ]
        + [
            MEGABYTE,
            "\u2581",
            "</s><extra_id_0>",
            "🎉" * 999,
            "x" * 19_999,
            "x" * 20_001,
            "in Jan, 99999",
            "\r\n\r\n",
            "\\",
            '"',
        ]
        + [
            " before x" * 9000,
            " from Jan, 1990 to Jan, 1990" * 999,
            "\\ud800",
            "٣٣٣",
            "Bo plays for Os from Feb, 1990 to Jan, 1990.",
            "(" * 5000,
            "a " * 30_000,
        ]
    )
    return rng.choice(
        [None, True, False, 0, -1, 5, 2**63, 1.5, math.nan, math.inf, -math.inf, [], {}, [[]], [None], {"text": None}]
        + [
            [text],
            {"text": [text]},
            {"text": text},
            {"text": []},
            {"text": [""]},
            {"a": {"b": [{"c": [[[[text]]]]}]}},
            ["x"] * 5000,
            list(range(500)),
        ]
        + [
            (RAW, "1e999"),
            (RAW, "9" * 5000),
            (RAW, DEEP),
            (RAW, "'x'"),
            (RAW, ""),
            (RAW, '"\\ud800"'),
            (RAW, '"\\u0000"'),
        ]
        + [text] * 24
    )


def dumps(row):
    """JSON of a row; values marked RAW are put in as they are"""
    parts = [f"{json.dumps(k)}: {v[1] if isinstance(v, tuple) else json.dumps(v)}" for k, v in row.items()]
    return ("{" + ", ".join(parts) + "}").encode("utf-8", "surrogatepass")


def corrupt(rng, rows):
    """Bytes of a JSON lines file in which something is wrong, or only unusual."""
    rows = [dict(row) for row in rows]
    kind, i = rng.randrange(3), rng.randrange(len(rows))
    for _ in range(rng.choice((1, 1, 1, 2, 5)) if kind else 0):
        key, change = rng.choice(list(rows[i])), rng.randrange(8)
        if change < 5:
            rows[i][key] = odd_value(rng)
        elif change == 5:
            rows[i].pop(key)
        elif change == 6:
            rows[i][next(iter(rows[i]))] = rows[rng.randrange(len(rows))].get(next(iter(rows[i])))  # an id again
        else:
            rows[i] |= {key + rng.choice(("s", " ", "\u200b")): rows[i].pop(key)}
        if len(rows[i]) < 2:
            break
    lines = [dumps(row) for row in rows]
    content = b"\n".join(lines) + b"\n" * rng.randrange(2)
    if kind == 2 and rng.random() < 0.7:
        return content
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    noise = rng.randbytes(rng.choice((1, 2, 30)))
    return rng.choice(
        [
            lambda: content[:a],
            lambda: content[a:],
            lambda: content[:a] + content[b:],
            lambda: content[:b] + content[a:],
            lambda: content[:a] + noise + content[a:],
            lambda: content[:a] + noise + content[a + len(noise) :],
            lambda: content[:a] + b"\0" * len(noise) + content[a:],
            lambda: b"\xef\xbb\xbf" + content,
            lambda: content[:a] + b"\xef\xbb\xbf" + content[a:],
            lambda: content.replace(b"\n", b"\r\n"),
            lambda: content.replace(b"\n", b"\r"),
            lambda: content.replace(b"\n", b"\n\n \t\n"),
            lambda: content.replace(b"\n", b" "),
            lambda: content.replace(b", ", b",\n"),
            lambda: content.decode("utf-8", "replace").encode("utf-16"),
            lambda: content.decode("utf-8", "replace").encode("utf-8-sig"),
            lambda: content.decode("utf-8", "replace").encode("latin-1", "replace"),
            lambda: b"[" + b",\n".join(lines) + b"]",
            lambda: gzip.compress(content, 1),
            lambda: gzip.compress(content, 1)[: max(1, a // 4)],
            lambda: gzip.compress(content[:a], 1) + gzip.compress(content[a:], 1),
            lambda: gzip.compress(content, 1) + noise,
            lambda: gzip.compress(content, 1)[: 30 + a // 9] + noise + gzip.compress(content, 1)[30 + a // 9 :],
            lambda: b"<!doctype html>\n" + content,
            lambda: b"",
            lambda: noise,
        ]
    )()


def sentence_about(error, path):
    """The error is one sentence, short, and about this file."""
    text = str(error).replace(str(path), "FILE")
    assert "\n" not in text and "FILE" in text and len(text) < 500, text
    assert re.search("expected|must|correct|delete|fetch|save|give", text), text
    return text


@pytest.mark.parametrize("reader", READERS)
def test_corrupted_lines_give_a_good_result_or_a_sentence(tmp_path, reader, capsys):
    rng, rows = random.Random(reader), good_rows()[{"obqa": "tempreason"}.get(reader, reader)]
    path, outcomes, read = tmp_path / "data.json", [], READERS[reader]
    for _ in range(300 if reader == "obqa" else 500):
        content = corrupt(rng, rows)
        path.write_bytes(content)
        begun, result, error = time.process_time(), None, None
        try:
            result = read(path)
        except UserError as e:
            error = sentence_about(e, path)
            assert "line " in error or "ids " in error, error  # ids that are missing are on no line
        if reader == "predictions":
            assert result is None or all(isinstance(x, str) for x in result)
        else:
            for ex in result or ():
                assert ex.id.strip() and ex.question.strip() and ex.answers and isinstance(ex.context, str)
                assert all(isinstance(a, str) for a in ex.answers) and all(f.start <= f.end for f in ex.facts)
                assert (ex.question + ex.context + "".join(ex.answers)).encode()  # no half of a surrogate pair
            # the same with wrong lines left out: what is read is read, what is not is counted
            capsys.readouterr()
            with contextlib.suppress(UserError):
                kept = read(path, skip_bad=True)
                said = re.search(r": (\d+) bad lines left out \(line \d+: ", capsys.readouterr().err)
                assert bool(said) == (result is None) and (result is None or kept == result)
        assert time.process_time() - begun < 10
        outcomes.append(error and re.sub(r"\d+|'.*'|\".*\"|\(.*\)", "", error)[:60])
    print({x: outcomes.count(x) for x in set(outcomes)})
    assert outcomes.count(None) > 30 and len(set(outcomes)) >= (8 if reader == "predictions" else 15)


def test_bad_lines_are_left_out_and_counted(tmp_path, capsys):
    rows = [dumps(row) for row in good_rows()["tempreason"]]
    path = tmp_path / "train_l2.json"
    path.write_bytes(b"\n".join([*rows[:3], b"{}", rows[1], b"\xff", b"[1]", b"{", *rows[3:]]))
    kept = list(data.read_tempreason(path, "reason", skip_bad=True))
    assert [ex.id for ex in kept] == [row["id"] for row in good_rows()["tempreason"]]
    err = capsys.readouterr().err
    assert f"{path}: 5 bad lines left out (line 4: field 'id' is missing" in err and "; and 2 more)" in err
    assert [ex.id for ex in evaluate.load_bench("tempreason-l2", "reason", "train", tmp_path, skip_bad=True)] == [
        ex.id for ex in kept
    ]
    with pytest.raises(UserError, match=r"train_l2\.json, line 4: .*--skip-bad"):
        evaluate.load_bench("tempreason-l2", "reason", "train", tmp_path)
    path.write_bytes(b"{}\n[]\n")
    with pytest.raises(UserError, match="no good row"):
        list(data.read_tempreason(path, "reason", skip_bad=True))
    for parse in (tsqa.parse_args, ppo.parse_args, evaluate.parse_args):
        assert parse(["--skip-bad"]).skip_bad and not parse([]).skip_bad


def peak(read, path):
    """-> most bytes that reading took, the error it ended in or None"""
    error = None
    tracemalloc.start()
    try:
        read(path)
    except UserError as e:
        error = e
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most, error


def test_bad_lines_take_no_more_than_twice_the_memory(tmp_path):
    """Per byte of the file, against a good file of one long row."""
    path, row = tmp_path / "a.json", good_rows()["timeqa"][0]
    path.write_bytes(dumps(row | {"context": MEGABYTE}))
    good = peak(READERS["timeqa"], path)[0] / path.stat().st_size
    for value in (
        MEGABYTE + "\\",
        [MEGABYTE],
        {"a": [MEGABYTE]},
        (RAW, '"' + MEGABYTE),
        (RAW, "9" * 10**6),
    ):
        for key in row:
            path.write_bytes(dumps(row | {key: value}))
            assert peak(READERS["timeqa"], path)[0] < 2 * good * path.stat().st_size + 200_000, key
    path.write_bytes(dumps(row | {"idx": [[]] * 2**18}))  # a megabyte of next to nothing: at most 64 bytes for each
    assert peak(READERS["timeqa"], path)[0] < 64 << 20


def test_bombs_in_gzip_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(data, "MAX_BLANK", 10_000)
    rows = [dumps(good_rows()["timeqa"][0] | {"idx": str(i)}) for i in range(40)]
    path = tmp_path / "a.json.gz"
    for packed, reason in (
        (bytes(40 << 20), "more than 1 MiB a line"),
        (b" " * (40 << 20), "more than 1 MiB a line"),
        (b"\n" * 20_000, "more than 10000 blank lines"),
        (b"\n".join(b"{" + b" " * 10**6 + row[1:] for row in rows), r"more than \d+ MiB unpacked"),
    ):
        path.write_bytes(gzip.compress(packed))
        most, error = peak(READERS["timeqa"], path)
        assert re.search(reason, str(error)) and most < 6 << 20
    monkeypatch.setattr(data, "MAX_RATIO", 10**6)
    assert len(list(data.read_timeqa(path))) == 40
    with zipfile.ZipFile(tmp_path / "a.json", "w") as archive:
        archive.writestr("a.json", b"\xff" * 99)  # packed rows may by chance be UTF-8, as the clock of the header
    with pytest.raises(UserError, match=r"a\.json, line 1: byte \d+ is not UTF-8"):
        list(data.read_timeqa(tmp_path / "a.json"))


def test_a_pipe_or_a_device_is_no_data(tmp_path):
    os.mkfifo(tmp_path / "train_l2.json")
    with pytest.raises(UserError, match=r"/dev/zero, line 1: more than 8 MiB a line"):
        list(data.read_timeqa("/dev/zero"))
    with pytest.MonkeyPatch.context() as m:
        m.setenv("TSQA_CACHE", str(tmp_path / "cache"))
        m.setenv("TSQA_HUB", "http://127.0.0.1:9")
        with pytest.raises(UserError, match=r"holds no train_l2\.json"):  # a pipe is not waited for
            data.find_data(tmp_path, "tempreason-l2", "train")


def test_corrupted_surveys_give_a_sentence(tmp_path, monkeypatch):
    rng, whole, outcomes = random.Random(1), (ROOT / "assets" / "traveler_survey.csv").read_bytes(), []
    (tmp_path / "assets").mkdir()
    path = tmp_path / "assets" / "traveler_survey.csv"
    monkeypatch.setattr(evaluate, "__file__", str(tmp_path / "evaluate.py"))
    survey = getattr(evaluate.survey, "__wrapped__", evaluate.survey)
    for _ in range(150):
        a = rng.randrange(len(whole))
        value = rng.choice(
            [b"", b"x", b"nan", b"-1", b"1e999", b"\0", b"\xff", b"0", b"\n", b",", b'"', b"1_0", "٣".encode()]
        )
        path.write_bytes(
            rng.choice([whole[:a] + value + whole[a + len(value) :], whole[:a], whole[:a] + value + whole[a:]])
        )
        try:
            cells = survey()
            assert len(cells) == 28 and all(((0 <= p) & (p <= 1)).all() for _, p in cells.values())
            outcomes.append(True)
        except UserError as e:
            text = str(e)
            assert f"{path}, line " in text and "restore the file" in text and "\n" not in text and len(text) < 500
            outcomes.append(False)
    path.unlink()
    with pytest.raises(UserError, match="restore"):
        survey()
    assert 5 < sum(outcomes) < 180, sum(outcomes)


def test_corrupted_traveler_files_give_a_sentence(tmp_path):
    from test_traveler import official

    rng, outcomes = random.Random(2), []
    paths = [p for p in sorted(official(tmp_path).rglob("*.json"))]
    for _ in range(150):
        official(tmp_path)
        path = rng.choice(paths)
        rows = json.loads(path.read_text())
        row = rng.choice(rows)
        if rng.random() < 0.7:
            row[rng.choice(list(row))] = value = odd_value(rng)
            raw = isinstance(value, tuple)
            path.write_bytes(b"[" + b",".join(map(dumps, rows)) + b"]" if raw else json.dumps(rows).encode())
        else:
            path.write_bytes(corrupt(rng, rows))
        try:
            questions = evaluate.read_traveler(tmp_path)
            assert questions and all(q.question.strip() for q in questions)
            outcomes.append(True)
        except UserError as e:
            sentence = str(e).replace(str(tmp_path), "DIR")
            assert "DIR" in sentence and "\n" not in sentence and len(sentence) < 600, sentence
            outcomes.append(False)
    assert 1 < sum(outcomes) < 145, sum(outcomes)
    official(tmp_path)
    row = json.loads((tmp_path / "dataset" / "vague" / "3Events.json").read_text())[0]
    (tmp_path / "dataset" / "vague" / "3Events.json").write_text(json.dumps(row))  # one question, not in a list
    assert len(evaluate.read_traveler(tmp_path)) == 7


# ----------------------------------------------------------------------------------------------------------------------
# hostile weights


def parts(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def join(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_corrupted_safetensors_give_the_tensors_or_a_sentence(tmp_path):
    rng, path = random.Random(3), tmp_path / "model.safetensors"
    names = [f"encoder.block.{i}.weight" for i in range(6)]
    tsqa.write_safetensors(path, {name: torch.randn(3, i + 1) for i, name in enumerate(names)})
    raw, (header, body) = path.read_bytes(), parts(path)
    odd = [-1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1.0, True, None, "5", [], [3], [[3]], {}, math.nan]
    outcomes = []
    for _ in range(500):
        h, b, a = json.loads(json.dumps(header)), body, rng.randrange(len(raw))
        entry = h[rng.choice(names)]
        key = rng.choice(["dtype", "shape", "data_offsets"])
        change = rng.randrange(9)
        if change == 0:
            content = raw[:a]
        elif change == 1:
            content = raw[:a] + rng.randbytes(3) + raw[a + 3 :]
        elif change == 2:
            content = (
                struct.pack("<Q", rng.choice([0, 1, len(raw) - 8, len(raw), 10**7, 10**10, 2**63, 2**64 - 1])) + raw[8:]
            )
        elif change == 3:
            entry[key] = rng.choice(odd)
        elif change == 4 and key != "dtype":
            entry[key][rng.randrange(2)] = rng.choice(odd)
        elif change == 5:
            entry["data_offsets"] = [
                entry["data_offsets"][0] + rng.randrange(-9, 9),
                entry["data_offsets"][1] + rng.randrange(-9, 9),
            ]
        elif change == 6:
            entry["shape"] = rng.choice(
                [[2**40] * 200, [0] * 9, [1] * 9, [12], [3, 0], [-3, -1], [2**62, 4], entry["shape"][::-1]]
            )
            entry["data_offsets"] = rng.choice([entry["data_offsets"], [4, 4], [12, 0]])
        elif change == 7:
            h[rng.choice(names)] = rng.choice([None, [], 5, "x", {}, entry])
        else:
            entry["dtype"] = rng.choice(["F64", "f32", "I8", "BF16", "F16", "", "F32 ", ["F32"], None, "F8_E4M3"])
        path.write_bytes(content if change < 3 else join(h, b))
        try:
            tensors = tsqa.read_safetensors(path)
            assert sum(t.numel() * t.element_size() for t in tensors.values()) <= len(raw)
            outcomes.append(None)
        except UserError as e:
            text = str(e).replace(str(path), "FILE")
            assert "FILE" in text and "\n" not in text and len(text) < 400, text
            assert "unpack" not in text and "NoneType" not in text, text  # words of Python, not of files
            outcomes.append(re.sub(r"encoder\S+|\d+", "", text)[:50])
    print({x: outcomes.count(x) for x in set(outcomes)})
    assert 20 < outcomes.count(None) < 400 and len(set(outcomes)) > 10
    for shape, offsets in ([0], [4, 4]), ([3, 0], [0, 0]), ([2], [8, 0]):
        path.write_bytes(join({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}, body))
        with pytest.raises(UserError, match=rf"data_offsets {offsets[0]} to {offsets[1]} of a do not fit F32 of shape"):
            tsqa.read_safetensors(path)


def memory_of(code, *args):
    """Runs Python code in a process of its own -> (what it printed, peak of its memory above that of the imports, MiB)"""
    start = "import resource, sys; import torch, tsqa, data; from pathlib import Path; top = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
    start += "before = top()\ntry:\n  "
    end = "\n  print('read')\nexcept data.UserError as e:\n  print('refused:', e)\nprint(top() - before)"
    done = subprocess.run(
        [sys.executable, "-c", start + code.replace("\n", "\n  ") + end, *map(str, args)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *out, mib = done.stdout.splitlines()
    return "\n".join(out), int(mib)


def model_of(directory, config=None):
    """A directory with the configuration of a small model and the bundled tokenizer; weights are up to the test."""
    directory.mkdir()
    c = {"vocab_size": 2176, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2} | (config or {})
    (directory / "config.json").write_text(json.dumps(c))
    shutil.copy(ROOT / "assets" / "tiny-t5" / "spiece.model", directory)
    return directory


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_hostile_weights_are_refused_before_they_take_memory(tmp_path):
    """All of them in one process, which must not grow; each would take a gigabyte or more."""
    huge = {"d_model": 2**20, "d_ff": 2**20, "vocab_size": 2**20}
    made = []

    def case(name, config=None):
        made.append(model_of(tmp_path / name, config))
        return made[-1]

    # a header of 10 GB, and one that is there but too long
    with open(case("header") / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", 10**10))
        f.truncate(10**10 + 100)
    # tensors that overlap, and one that is larger than the machine
    entry = {"dtype": "F32", "shape": [2**28], "data_offsets": [0, 2**30]}
    for name, header, size in (
        ("overlap", {f"t{i}": entry for i in range(40)}, 2**30),
        ("terabytes", {"t": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, 2**42),
    ):
        raw = join(header, b"")
        with open(case(name) / "model.safetensors", "wb") as f:
            f.write(raw)
            f.truncate(len(raw) + size)
    # a configuration that asks for terabytes, with and without weights that claim to have them
    (case("config", huge) / "model.safetensors").write_bytes(join({}, b""))
    zero = torch.zeros(1)
    torch.save({"shared.weight": zero.expand(2**20, 2**20)}, case("stride", huge) / "pytorch_model.bin")
    torch.save({f"w{i}": zero.expand(2**28) for i in range(9)}, case("repeated") / "pytorch_model.bin")
    torch.save(
        {"shared.weight": torch.sparse_coo_tensor([[0], [0]], [1.0], (2**20, 2**20))},
        case("sparse") / "pytorch_model.bin",
    )
    torch.save({"shared.weight": torch.empty(2**20, 2**20, device="meta")}, case("meta") / "pytorch_model.bin")
    # an archive that unpacks to 128 MiB, and pickles that would run code
    torch.save({"w": torch.zeros(4)}, tmp_path / "small.bin")
    bomb = zipfile.ZipFile(case("bomb") / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with zipfile.ZipFile(tmp_path / "small.bin") as small, bomb:
        for info in small.infolist():
            bomb.writestr(info.filename, bytes(2**27) if info.filename.endswith("data/0") else small.read(info))
    (case("pickle") / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil(tmp_path / "owned")}))
    torch.save({"a": Evil(tmp_path / "owned")}, case("archive") / "pytorch_model.bin")
    torch.save(Evil(tmp_path / "owned"), case("legacy") / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    # a configuration, an index and a tokenizer without end
    (case("long config") / "config.json").write_text("{" + " " * 10_000_001 + "}")
    (case("long index") / "model.safetensors.index.json").write_text('{"weight_map": {' + " " * 10_000_001 + "}}")
    with open(case("pieces") / "spiece.model", "wb") as f:
        f.truncate(2**33)
    code = "for path in sys.argv[1:]:\n  try:\n    data.Tokenizer(path)\n    tsqa.T5.from_pretrained(path)\n    print('read', path)\n"
    out, mib = memory_of(code + "  except data.UserError as e:\n    print('refused:', e)", *made)
    lines = [line for line in out.splitlines() if line != "read"]
    assert len(lines) == len(made), out
    reasons = {
        "header": "header of 10000000000",
        "terabytes": "asks for",
        "config": "asks for",
        "repeated": "larger than the file",
    }
    reasons |= {"overlap": "overlap", "bomb": "plain PyTorch tensors", "long config": "more than 10000000 bytes"}
    reasons |= {
        "long index": "more than 10000000 bytes",
        "pieces": "more than 64 MiB",
        "pickle": "plain PyTorch tensors",
    }
    for line, directory in zip(lines, made, strict=True):
        assert line.startswith("refused: ") and directory.name in line and len(line) < 1200, line
        assert reasons.get(directory.name, "") in line, line
    assert mib < 60, (mib, out)
    assert not (tmp_path / "owned").exists()


def test_links_do_not_lead_out_of_a_model_directory(toy, tmp_path):
    for name in ("config.json", "model.safetensors", "spiece.model", "args.json"):
        shutil.copytree(toy, tmp_path / name)
        (tmp_path / f"secret-{name}").write_bytes((toy / name).read_bytes())
        (tmp_path / name / name).unlink()
        (tmp_path / name / name).symlink_to(f"../secret-{name}")
        with pytest.raises(UserError, match=r"is a link to .*secret.*, out of its directory"):
            tsqa.T5.from_pretrained(tmp_path / name)
        (tmp_path / name / name).unlink()
        (tmp_path / name / name).symlink_to("/dev/zero")
        with pytest.raises(UserError, match="is a link to /dev/zero"):
            tsqa.T5.from_pretrained(tmp_path / name)
    # within the directory a link may lead anywhere, and so it may within Hugging Face's cache
    shutil.copytree(toy, tmp_path / "inside")
    (tmp_path / "inside" / "model.safetensors").rename(tmp_path / "inside" / "weights")
    (tmp_path / "inside" / "model.safetensors").symlink_to("weights")
    tsqa.T5.from_pretrained(tmp_path / "inside")
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    shutil.copytree(toy, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    tsqa.T5.from_pretrained(snapshot)
    os.mkfifo(tmp_path / "inside" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is no file"):
        tsqa.T5.from_pretrained(tmp_path / "inside")


def test_corrupted_tokenizers_give_a_sentence_or_a_tokenizer(tmp_path):
    rng, raw = random.Random(4), (ROOT / "assets" / "tiny-t5" / "spiece.model").read_bytes()
    path, good = tmp_path / "spiece.model", 0
    for _ in range(60):
        a = rng.choice([rng.randrange(len(raw)), rng.randrange(200), len(raw) - rng.randrange(1, 500)])
        path.write_bytes(
            rng.choice([raw[:a], raw[:a] + rng.randbytes(2) + raw[a + 2 :], raw[:a] + raw[a + 3 :], raw[a:]])
        )
        try:
            tokenizer = Tokenizer(tmp_path)
            assert isinstance(tokenizer.decode(tokenizer.encode("Ann Lee, 1949–66")), str)
            good += 1
        except UserError as e:
            assert "spiece.model" in str(e) and "\n" not in str(e) and len(str(e)) < 600
    assert 0 < good < 60


# ----------------------------------------------------------------------------------------------------------------------
# downloads

BODY = b'{"rows": 1}\n' * 3000


class Hub(http.server.BaseHTTPRequestHandler):
    """A server that misbehaves as the name of the file says."""

    hits: list = []  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.hits.append(self.path)
        name, first = self.path.rsplit("/", 1)[-1], self.hits.count(self.path) == 1
        if name.startswith(("busy", "closed")) and (first or "long" in name or "ever" in name):
            self.send_response(429 if name.startswith("busy") else 503)
            self.send_header(
                "Retry-After", "9000" if "long" in name else "Thu, 01 Jan 2026 00:00:00 GMT" if "date" in name else "0"
            )
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if name == "gone":
            return self.send_error(404)
        if name.startswith("moved") or name == "around":
            self.send_response(302)
            self.send_header("Location", "/around" if name == "around" else f"/files/{name.removeprefix('moved-')}")
            self.send_header("Content-Length", "0")
            if "hash" in name:
                wrong = "0" * 64 if "wrong" in name else hashlib.sha256(BODY).hexdigest()
                self.send_header("X-Linked-ETag", f'"{wrong}"')
            return self.end_headers()
        self.send_response(200)
        if name.startswith("git"):
            digest = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
            self.send_header("ETag", f'W/"{digest[::-1] if "wrong" in name else digest}"')
            self.send_header("X-Repo-Commit", "abc")
        if name == "other-etag":  # of a server that means something else by it
            self.send_header("ETag", '"' + "0" * 64 + '"')
        size = {"cut": len(BODY) + 100, "long": len(BODY) - 100, "odd-size": "many", "terabytes": 2**50}.get(
            name, len(BODY)
        )
        if name == "chunked-cut":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(size))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if name == "slow":
            for byte in BODY[:400]:
                with contextlib.suppress(OSError):
                    self.wfile.write(bytes([byte]))
                time.sleep(0.02)
        elif name == "chunked-cut":
            self.wfile.write(b"100\r\n" + BODY[:50])
        elif name == "pause":
            self.wfile.write(BODY[:50])
            time.sleep(0.3)
            self.wfile.write(BODY[50:])
        else:
            self.wfile.write(b"\n <HTML><p>Sign in" + BODY[18:] if name == "page" else BODY)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Hub.hits = []
    monkeypatch.setattr(data, "TIMEOUT", 5)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["plain", "moved-plain", "moved-hash", "busy", "closed", "git", "other-etag", "pause"])
def test_good_downloads(hub, tmp_path, name, capsys):
    path = tmp_path / "cache" / "a.json"
    data.download(f"{hub}/{name}", path)
    assert path.read_bytes() == BODY and os.listdir(path.parent) == ["a.json"]
    assert ("asks to wait 0 s" in capsys.readouterr().err) == (name in ("busy", "closed"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut", r"received \d+ of \d+ bytes|IncompleteRead"),
        ("chunked-cut", "IncompleteRead|Connection|closed|received"),
        ("odd-size", "invalid literal"),
        ("terabytes", "more than the disk has free"),
        ("gone", "404"),
        ("busy-long", "429"),
        ("busy-ever", "429"),
        ("busy-date-ever", "429"),
        ("closed-ever", "503"),
        ("around", "redirect"),
        ("moved-gone", "404"),
        ("moved-wrong-hash", "damaged on the way: its hash is [0-9a-f]{64}, not 0{64}"),
        ("git-wrong", "damaged on the way"),
        ("page", "HTML page"),
    ],
)
def test_bad_downloads_leave_nothing(hub, tmp_path, name, reason):
    for path in (tmp_path / "a.json", tmp_path / "old.json"):
        (tmp_path / "old.json").write_text("old")
        Hub.hits.clear()
        with pytest.raises(UserError, match=reason) as e:
            data.download(f"{hub}/{name}", path, remedy="use --data-dir")
        assert f"{hub}/{name}" in str(e.value) and str(path) in str(e.value) and "use --data-dir" in str(e.value)
        assert os.listdir(tmp_path) == ["old.json"] and (tmp_path / "old.json").read_text() == "old"
        assert len(Hub.hits) <= 11


def test_a_reply_longer_than_it_says_is_cut_there(hub, tmp_path):
    """Only the stated bytes belong to the reply; a hash, where there is one, tells."""
    data.download(f"{hub}/long", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY[:-100]
    with pytest.raises(UserError, match="its hash is"):
        data.download(f"{hub}/long", tmp_path / "b", sha256=hashlib.sha256(BODY).hexdigest())


def test_a_body_and_headers_that_trickle_are_given_up(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "TIMEOUT", 0.3)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"timed out: \d+ bytes in"):
        data.download(f"{hub}/slow", tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                for _ in range(200):
                    connection.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises(UserError, match="timed out"):
            data.download(f"http://127.0.0.1:{server.getsockname()[1]}/a", tmp_path / "a")
    assert os.listdir(tmp_path) == [] and time.monotonic() - begun < 30


def test_proxies_of_the_environment_are_used(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", hub)
    data.download("http://nowhere.invalid/files/plain", tmp_path / "a")
    assert Hub.hits == ["http://nowhere.invalid/files/plain"] and (tmp_path / "a").read_bytes() == BODY
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    with pytest.raises(UserError, match=r"nowhere\.invalid"):
        data.download("http://nowhere.invalid/files/plain", tmp_path / "b")


def test_two_processes_download_one_file(hub, tmp_path):
    (tmp_path / "a").write_text("old")
    old = (tmp_path / "a").open()
    context = multiprocessing.get_context("fork")
    two = [context.Process(target=data.download, args=(f"{hub}/pause", tmp_path / "a")) for _ in range(2)]
    for process in two:
        process.start()
    for process in two:
        process.join(60)
    assert [process.exitcode for process in two] == [0, 0]
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == BODY
    with old:
        assert old.read() == "old"  # who reads meanwhile gets one file or the other


def test_a_cache_that_cannot_be_written(hub, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot download .* to /proc/none/a"):
        data.download(f"{hub}/plain", "/proc/none/a")
    assert Hub.hits == []  # found before anything is fetched
    (tmp_path / ".a.0123.tmp").write_bytes(b"half")  # of a process that was killed
    os.utime(tmp_path / ".a.0123.tmp", (0, 0))
    (tmp_path / ".a.4567.tmp").write_bytes(b"half")  # perhaps of one that is at work
    data.download(f"{hub}/plain", tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == [".a.4567.tmp", "a"]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # a full disk
    try:
        with pytest.raises(UserError, match="File too large"):
            data.download(f"{hub}/plain", tmp_path / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(os.listdir(tmp_path)) == [".a.4567.tmp", "a"]


# ----------------------------------------------------------------------------------------------------------------------
# numbers


def sft_args(toy, out, *more):
    base = f"--stage sft --model {toy} --out {out} --n-train 16 --n-dev 2 --epochs 1 --batch-size 8 --setting reason"
    return tsqa.parse_args([*base.split(), "--dtype", "float32", *more])


def short_batch(tokenizer):
    """Sources and targets of some pieces: a name, to be written again"""
    names = data.Names(random.Random(0), "train")
    texts = [names.draw("club") for _ in range(8)]
    rows = [(tokenizer.encode(text), [0] * len(tokenizer.encode(text))) for text in texts]
    return rows, [row[0] for row in rows]


def test_bfloat16_learns_as_float32_does(toy):
    """Over 300 steps: the loss, averaged over 20 steps, differs by less than 0.1 nats throughout and 0.05 in the mean."""
    rows, targets = short_batch(Tokenizer(toy))
    curves = []
    for dtype in ("float32", "bfloat16"):
        model, args = tsqa.T5.from_pretrained(toy), sft_args(toy, "unused", "--dtype", dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = [tsqa.train_step(model, optimizer, rows, targets, [list(range(8))], args) for _ in range(300)]
        curves.append(torch.tensor(losses).view(15, 20).mean(1))
    apart = (curves[0] - curves[1]).abs()
    print(curves, apart)
    assert curves[0][-1] < 0.7 * curves[0][0]
    assert apart.max() < 0.1 and apart.mean() < 0.05
    assert apart.max() > 0  # they are two computations


def test_parts_of_a_batch_learn_as_the_whole_does(toy, tmp_path):
    """--accum: the gradients of SGD steps agree to 1e-5, and so do the weights after a few of them."""
    rows, targets = short_batch(Tokenizer(toy))
    weights = []
    for chunks in ([list(range(8))], [list(range(i, 8, 4)) for i in range(4)]):
        model, args = tsqa.T5.from_pretrained(toy), sft_args(toy, "unused")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = [tsqa.train_step(model, optimizer, rows, targets, chunks, args) for _ in range(4)]
        weights.append((torch.tensor(losses), model.state_dict()))
    assert torch.allclose(weights[0][0], weights[1][0], rtol=1e-5)
    assert all(torch.allclose(a, weights[1][1][k], atol=1e-5) for k, a in weights[0][1].items())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_stops_the_run(toy, tmp_path, monkeypatch, bad):
    """The loss may be fine where its gradient is not; what is on the disk stays what it was before the step."""
    calls, clip = [], torch.nn.utils.clip_grad_norm_

    def spoilt(params, most):
        params = list(params)
        calls.append(1)
        if len(calls) == 2:
            params[0].grad[0, 0] = bad
        return clip(params, most)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoilt)
    out = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"nan at step 2 \(mini-train.*, \.\.\.\); lower --lr; the last good state is in .*run"
    ):
        tsqa.sft(sft_args(toy, out, "--save-minutes", "0"))
    state = torch.load(out / "trainer.pt", weights_only=True)
    assert state["step"] in (0, 1) and all(v.isfinite().all() for v in state["model"].values())


def test_losses_that_are_no_number_stop_pretraining_and_ppo(toy, tmp_path, monkeypatch):
    config = tsqa.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=5, num_decoder_layers=1, num_heads=4)
    with monkeypatch.context() as m:
        m.setattr(tsqa, "read_config", lambda _: config)
        m.setattr(tsqa, "pretrain_step", lambda *_: {"loss": math.inf})
        with pytest.raises(UserError, match=r"inf at step 1 \(a batch of .*'pretrain 0 0'.*\); lower --lr"):
            tsqa.pretrain(tsqa.parse_args(["--stage", "pretrain", "--out", str(tmp_path / "p"), "--max-pieces", "512"]))
    assert torch.load(tmp_path / "p" / "trainer.pt", weights_only=True)["step"] == 0
    loss = ppo.ppo_loss

    def spoilt(*args):
        value, figures = loss(*args)
        return value * math.nan, figures | {"vf_loss": figures["vf_loss"] * math.nan}

    monkeypatch.setattr(ppo, "ppo_loss", spoilt)
    argv = f"--ckpt {toy} --out {tmp_path / 'r'} --data mini --setting reason --n-train 4 --n-dev 1 --iterations 2 --dtype float32"
    argv += " --num-rollouts 4 --samples 2 --batch-size 4 --max-new-tokens 3 --max-kl 1e9 --stop-kl 1e9"
    with pytest.raises(UserError, match=r"nan at rollout 1 \(mini-train"):
        ppo.ppo(ppo.parse_args(argv.split()))
    state = torch.load(tmp_path / "r" / "trainer.pt", weights_only=True)
    assert state["step"] == 0 and all(v.isfinite().all() for v in state["model"].values())


def test_the_same_seed_gives_the_same_bytes_twice(toy, tmp_path):
    for name in ("a", "b"):
        tsqa.sft(sft_args(toy, tmp_path / name, "--dropout", "0.1"))
    for path in (tmp_path / "a").iterdir():
        again = (tmp_path / "b" / path.name).read_bytes()
        assert path.read_bytes() == again or path.name == "README.md", path.name  # which holds the name of the run


# ----------------------------------------------------------------------------------------------------------------------
# long and odd inputs


@pytest.mark.parametrize("pieces", [0, 1, 63, 64, 65, 50_000])
def test_contexts_of_any_length(toy, pieces):
    tokenizer, question, limit = Tokenizer(toy), "Who led Os in 1999?", 64
    count = lambda text: len(tokenizer.encode(text)) - 1
    room = limit - count(f"question: {question}") - count("context: ") - 1
    n = pieces if pieces in (0, 1, 50_000) else pieces - limit + room  # the limit, and one to each side of it
    context = " ".join(["a"] * n)
    assert count(context) == n
    ((ids, marks),) = tsqa.encode_sources(tokenizer, TimeTagger(), [(question, context)], 2, limit)
    assert len(ids) == len(marks) <= limit and ids[-1] == data.EOS and ids.count(data.EOS) == 1
    assert tokenizer.decode(ids).startswith(f"question: {question} context:")
    kept = tokenizer.decode(ids).split("context:")[1].split()
    assert len(kept) == min(n, room) or (n > room and len(kept) > room // 2)


def test_odd_texts_are_answered(toy):
    model, tokenizer, tagger, _ = tsqa.load_run(toy)
    texts = ("?", "。、", "12 34", "\u200b", "\u202e", "🎉", "-", "\0", "Who?", "\u2581", " ", "1999", "a" * 300, "٣")
    pairs = [pair for text in texts for pair in ((text, "Bo plays for Os."), ("Who?", text), (text[:99], text))]
    examples = [Example(str(i), *pair, [""]) for i, pair in enumerate(pairs)]
    answers = tsqa.predict(model, tokenizer, tagger, examples, max_new_tokens=4)
    assert len(answers) == 3 * len(texts) and all(isinstance(answer, str) for answer in answers)
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a b"


def test_answers_longer_than_the_limit_are_cut_and_counted(toy, tmp_path, monkeypatch, capsys):
    examples = [Example("1", "Who?", "Bo", ["Bo", "a b c d e f g h"]), Example("2", "Who?", "Bo", ["Bo"])]
    monkeypatch.setattr(tsqa, "load_bench", lambda *_: examples)
    tsqa.sft(sft_args(toy, tmp_path / "run", "--max-target", "4"))
    assert "1 answers reach --max-target 4 pieces" in capsys.readouterr().err


def test_a_source_without_pieces_is_a_fault_of_ours():
    with pytest.raises(AssertionError, match="without any piece"):
        tsqa.collate([([5, 1], [0, 0]), ([], [])], "cpu")


# ----------------------------------------------------------------------------------------------------------------------
# wrong use: found at the start


def flags_of(script, monkeypatch):
    """{flag: argparse action} of a script"""
    found, add = {}, __import__("argparse")._ActionsContainer.add_argument

    def spy(self, *names, **how):
        action = add(self, *names, **how)
        found[names[-1]] = action
        return action

    with monkeypatch.context() as m:
        m.setattr("argparse._ActionsContainer.add_argument", spy)
        with contextlib.suppress(SystemExit):
            m.setattr(sys, "argv", [script.__name__ + ".py", "--help"])
            script.main()
    return found


@pytest.mark.parametrize("script", [tsqa, ppo, evaluate, reward, data])
def test_every_flag_refuses_what_it_cannot_be(script, monkeypatch, capsys, tmp_path):
    flags = flags_of(script, monkeypatch)
    assert len(flags) >= 4
    monkeypatch.chdir(tmp_path)
    refused = 0
    for flag, action in flags.items():
        if action.choices is not None:
            wrong = ["", "no such choice"]
        elif action.type in (None, str) or action.nargs == 0:
            continue
        else:
            wrong = ["", "x", "nan", "1e400", *([] if action.type is int else ["-1", "inf", "9" * 400])]
        for value in wrong:
            monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", f"{flag}={value}"])
            with pytest.raises(SystemExit) as e:
                data.run(script.main)
            err = capsys.readouterr().err
            assert e.value.code == 2 and "Traceback" not in err, (flag, value)
            assert flag in err.splitlines()[-1], err
            refused += 1
    assert refused >= 4


@pytest.mark.parametrize(
    ("script", "argv", "message"),
    [
        (tsqa, "--resume --overwrite --model TOY", "give one of them"),
        (tsqa, "--stage ask --question x", "leave it out of --stage ask"),
        (tsqa, "--stage pretrain --data mini", "leave it out of --stage pretrain"),
        (tsqa, "--model TOY --out TOY --overwrite", "is the model itself"),
        (tsqa, "--model TOY --data tempreason-l2 --setting mix", "--setting mix exists only for mini"),
        (tsqa, "--model TOY --data tempreason-l2 --data-dir EMPTY", "leave --data-dir out to download it"),
        (tsqa, "--model TOY --tagger ner --spacy-model none", "is not installed"),
        (tsqa, "--model MIXED", "the tokenizer that the model was trained with"),
        (ppo, "--ckpt EMPTY", "holds no fine-tuned model"),
        (ppo, "--ckpt PLAIN", "is not fine-tuned; do it with: python tsqa.py --stage sft"),
        (ppo, "--ckpt TOY --num-rollouts 7 --samples 2", "must be a multiple of --samples"),
        (evaluate, "--bench tempreason-l2 --data-dir EMPTY --ckpt TOY", "leave --data-dir out to download it"),
        (evaluate, "--bench tempreason-l2 --data-dir NONE --ckpt TOY", "is not a folder"),
        (evaluate, "--ckpt EMPTY", "config.json"),
        (evaluate, "--ckpt MIXED", "the tokenizer that the model was trained with"),
        (evaluate, "--predictions NONE", "NONE: cannot"),
        (evaluate, "--bench mini timeqa-easy --predictions x", "give one --bench"),
    ],
)
def test_wrong_use_is_found_at_the_start(toy, tmp_path, monkeypatch, capsys, script, argv, message):
    places = {"TOY": toy, "EMPTY": tmp_path / "EMPTY", "NONE": tmp_path / "NONE", "PLAIN": tmp_path / "plain"}
    places |= {"MIXED": tmp_path / "mixed"}
    places["EMPTY"].mkdir()
    shutil.copytree(toy, places["PLAIN"], ignore=shutil.ignore_patterns("args.json"))
    if "MIXED" in argv:
        shutil.copytree(toy, places["MIXED"])
        sizes = {"vocab_size": 4000, "d_model": 8, "d_ff": 8, "num_layers": 1, "num_decoder_layers": 1}
        tsqa.T5(tsqa.T5Config(**sizes)).save_pretrained(places["MIXED"])
    monkeypatch.setenv("TSQA_HUB", "http://127.0.0.1:9")
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tsqa, "predict", None)  # nothing is trained or answered
    monkeypatch.setattr(tsqa, "train_step", None)
    monkeypatch.chdir(tmp_path)
    argv = [str(places.get(word, word)) for word in argv.split()]
    out = [] if "--out" in argv or script is evaluate else ["--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *argv, *out])
    before = {path: path.read_bytes() for path in toy.iterdir()}
    with pytest.raises(SystemExit) as e:
        data.run(script.main)
    err = capsys.readouterr().err
    assert e.value.code == 2 and message in err.splitlines()[-1], err
    assert {path: path.read_bytes() for path in toy.iterdir()} == before


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_another_model_or_a_foreign_state_is_never_written_over(toy, tmp_path):
    shutil.copytree(toy, tmp_path / "mine")
    (tmp_path / "mine" / "args.json").unlink()
    with pytest.raises(UserError, match="holds a model without the state of its run"):
        tsqa.sft(sft_args(toy, tmp_path / "mine"))
    tsqa.sft(sft_args(toy, tmp_path / "run"))
    (tmp_path / "run" / "trainer.pt").rename(tmp_path / "kept.pt")  # to save space
    for more in ((), ("--resume",)):
        with pytest.raises(UserError, match="holds a model without the state of its run"):
            tsqa.sft(sft_args(toy, tmp_path / "run", *more))
    state = torch.load(tmp_path / "kept.pt", weights_only=True)
    for broken in (b"", b"PK\x03\x04 junk", pickle.dumps({"a": Evil(tmp_path / "owned")})):
        (tmp_path / "run" / "trainer.pt").write_bytes(broken)
        with pytest.raises(UserError, match="is damaged"):
            tsqa.sft(sft_args(toy, tmp_path / "run", "--resume"))
    state["model"].pop("shared.weight")
    torch.save(state, tmp_path / "run" / "trainer.pt")
    with pytest.raises(UserError, match="is of another model"):
        tsqa.sft(sft_args(toy, tmp_path / "run", "--resume"))
    assert not (tmp_path / "owned").exists()
    answers = evaluate.load_bench("mini", n=1)
    assert isinstance(answers[0], Example)
