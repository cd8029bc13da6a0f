"""The data: facts, TempReason, TimeQA, passages, batches, time tagger, tokenizer, `mini`, negatives, pretraining tasks."""

import argparse
import calendar
import contextlib
import functools
import glob
import gzip
import hashlib
import http.client
import io
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import string
import sys
import threading
import time
import unicodedata
import urllib.error
import urllib.request
import uuid
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sentencepiece
import spacy
import torch
from tqdm import tqdm

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
LAST_MONTH = 9999 * 12 + 11  # stands for an open end
MAX_FILE = 4 << 30  # bytes after unpacking; the official files stay under 1 GiB
MAX_LINE = 8 << 20  # bytes; the longest official line has about 0.3 MB
MAX_RATIO = 200  # unpacked to packed bytes of a gzip file above 64 MiB; the official files stay below 30
MAX_BLANK = 10**6  # blank lines of a file
MAX_FIELD = 20_000  # characters of a question, an answer or an id; the patterns that read them are not made for more
MAX_PIECES = 64 << 20  # bytes of spiece.model; T5's has 0.8 MB
SENTENCE = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
STOP_WORDS = re.compile(
    r"(?:an?|the|of|in|on|at|to|from|for|by|with|and|or|was|were|is|are|be|been|did|do|does|had|has|have|who|whom"
    r"|what|which|where|when|how|that|this|its?|as|between|after|before|since|until|during|s?he|his|her|they|their)"
)


# ---- errors and files


class UserError(Exception):
    """Wrong input. The message is one sentence: which file, line and field, what was expected, what to do."""


def run(main):
    """Calls main() and returns its result; UserError -> one line on stderr and exit status 2; Ctrl-C -> 130.

    Output that nobody reads any more, as in `... | head`, ends it with 141, as a shell has it.
    Of the processes of torchrun the first alone speaks; what is no UserError is shown whoever raises it.
    """
    with contextlib.ExitStack() as silence:
        if int(os.environ.get("RANK", "0")):
            nothing = silence.enter_context(open(os.devnull, "w"))
            silence.enter_context(contextlib.redirect_stdout(nothing))
            silence.enter_context(contextlib.redirect_stderr(nothing))
        try:
            return main()
        except UserError as e:
            print(f"error: {e}", file=sys.stderr)
            sys.exit(2)
        except BrokenPipeError:  # whoever reads the output, `head` for one, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(141)
        except KeyboardInterrupt as e:
            if not e.args:  # else whoever was interrupted has said how to go on
                print(f"\ninterrupted; start again with: {command()}", file=sys.stderr)
            sys.exit(130)


def command(*leave_out):
    """The shell command that started this program."""
    n = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    start = "python " if n == 1 else f"torchrun --nproc_per_node={n} "
    return start + shlex.join(a for a in sys.argv if a not in leave_out)


class Help(argparse.RawDescriptionHelpFormatter):
    """argparse help that shows each default behind its flag, and no usage: the groups name every flag."""

    def add_usage(self, usage, actions, groups, prefix=None):
        super().add_usage("%(prog)s [flags]    (--help shows all of them, with examples)", actions, groups, prefix)

    def _get_default_metavar_for_optional(self, action):
        return getattr(action.type, "metavar", action.dest.upper().split("_")[-1])

    def _get_help_string(self, action):
        told = action.default is None or action.default in ([], argparse.SUPPRESS) or isinstance(action.default, bool)
        shown = not told and "(default" not in action.help
        return action.help + (" (default: %(default)s)" if shown else "")


def number(kind, low, high=math.inf):
    """argparse type: a finite int or float in [low, high], with a sentence when it is not."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"expected a {what} from {low} to {high}, got {text!r}")
        return value

    parse.metavar = "N" if kind is int else "X"  # for Help
    return parse


def table(rows):
    """Aligned Markdown table of dicts; its columns are the keys in order of appearance, "-" where a row lacks one."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    padded = []  # by column
    for column in columns:
        cells = [column, ""] + [str(row.get(column, "-")).replace("|", "\\|") for row in rows]
        width = max(3, *map(len, cells))
        left = column in ("system", "bench", "questions", "category", "data", "setting", "split")
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell in cells]
        cells[1] = "-" * width if left else "-" * (width - 1) + ":"
        padded.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in zip(*padded, strict=True))


def write_atomic(path, content):
    """Writes beside `path`, flushes, then renames: nobody ever sees half a file. Content: str, bytes, or an iterable of
    buffers, which are written one at a time."""
    path = Path(path)
    content = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as f:
            f.writelines([content] if isinstance(content, bytes) else content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # not every file system can; then the new name may not outlive a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except OSError as e:
        raise UserError(f"cannot write {path} ({e.strerror or e}); free the place or choose another path") from e
    finally:
        with contextlib.suppress(OSError):  # its folder may be no folder
            temporary.unlink(missing_ok=True)


def _lines(path):
    """Yields (line number, bytes) of a file, plain or gzip by its first bytes; blank lines are passed over."""
    n = total = blank = 0
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            f = gzip.open(raw) if packed else raw  # noqa: SIM115
            most = min(MAX_FILE, max(MAX_RATIO * os.fstat(raw.fileno()).st_size, 8 * MAX_LINE)) if packed else MAX_FILE
            while line := f.readline(MAX_LINE + 1):
                n, total, blank = n + 1, total + len(line), blank + (not line.strip())
                for size, limit, what in (len(line), MAX_LINE, "a line"), (total, most, "unpacked"):
                    if size > limit:
                        raise UserError(
                            f"{path}, line {n}: more than {limit >> 20} MiB {what}; expected JSON lines, split the file"
                        )
                if blank > MAX_BLANK:
                    raise UserError(f"{path}, line {n}: more than {MAX_BLANK} blank lines; expected JSON lines")
                if line.strip():
                    yield n, line.removeprefix(b"\xef\xbb\xbf") if n == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise UserError(
            f"{path}, line {n + 1}: the gzip data are cut off or damaged ({e}); fetch the file again"
        ) from None
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror or e}); expected JSON lines, plain or gzip") from None


def _field(row, name, kind=str, default=None):
    """row[name], `a.b` goes into a nested object; checked to be a str or a list of str. Missing -> default or error."""
    what = "a string" if kind is str else "a list of strings"
    value = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            if default is not None and isinstance(value, dict):
                return default
            raise UserError(f"field '{name}' is missing; expected {what}")
        value = value[part]
    if not isinstance(value, kind) or not all(isinstance(v, str) for v in value):
        shown = json.dumps(value)
        raise UserError(f"field '{name}' is {shown[:60]}{'...' * (len(shown) > 60)}; expected {what}")
    if re.search("[\ud800-\udfff]", value if kind is str else "".join(value)):
        raise UserError(f"field '{name}' holds half of a surrogate pair; expected valid Unicode")
    return value


def _required(row, name, most=MAX_FIELD):
    text = _field(row, name).strip()
    if not text or len(text) > most:
        what = f"has {len(text)} characters; expected at most {most}" if text else "is blank; expected text"
        raise UserError(f"field '{name}' {what}")
    return text


def _answers(row, name):
    """Different answers of a list, stripped; at most MAX_FIELD characters each"""
    answers = list(dict.fromkeys(a.strip() for a in _field(row, name, list)))
    if max(map(len, answers), default=0) > MAX_FIELD:
        raise UserError(f"field '{name}' has an answer of more than {MAX_FIELD} characters")
    return answers


def _row(text):
    """The JSON object of a line, given as bytes"""
    try:
        row = json.loads(text.decode())
    except UnicodeDecodeError as e:
        raise UserError(f"byte {e.start + 1} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as e:
        raise UserError(f"not JSON ({e}); expected one JSON object on every line") from None
    if not isinstance(row, dict):
        raise UserError(f"the line holds a JSON {type(row).__name__}; expected one JSON object on every line")
    return row


def _examples(path, key, build, skip_bad=False):
    """Yields build(row) for each row of a JSON lines file; `key` is the unique id. Errors name file and line.

    skip_bad: wrong rows are left out, counted, and reported on stderr at the end.
    """
    seen, bad, example = {}, [], None
    for n, text in _lines(path):
        try:
            row = _row(text)
            first = seen.setdefault(_required(row, key), n)
            if first != n:
                raise UserError(f"field '{key}' repeats {row[key]!r:.60} of line {first}; expected unique ids")
            example = build(row)
        except UserError as e:
            if not skip_bad:
                raise UserError(f"{path}, line {n}: {e}; correct or delete the line, or give --skip-bad") from None
            bad.append(f"line {n}: {e}")
            continue
        yield example
    if bad:
        shown = "; ".join(bad[:3]) + f"; and {len(bad) - 3} more" * (len(bad) > 3)
        print(f"{path}: {len(bad)} bad lines left out ({shown})", file=sys.stderr)
    if example is None:
        what = "no good row" if bad else "no rows"
        raise UserError(f"{path}, line 1: the file has {what}; expected one JSON object on every line, fetch it again")


# ---- facts


@dataclass
class Fact:
    """One statement with its time; `object` is the part asked for. Months = year * 12 + month - 1, inclusive."""

    subject: str
    relation: str
    object: str
    start: int
    end: int


@dataclass
class Example:
    """One question. `answers` is never empty, [""] = unanswerable; `time` = (first, last) month asked about."""

    id: str
    question: str
    context: str
    answers: list[str]
    facts: list[Fact] = field(default_factory=list)
    time: tuple[int, int] | None = None
    remote: list[str] = field(default_factory=list)
    proximal: list[str] = field(default_factory=list)


_MONTH = rf"(?:{'|'.join(MONTHS)}), \d{{3,4}}"
_FACT = re.compile(rf"(.+) from ({_MONTH}) to ({_MONTH})\.?")
# TempReason's ten sentence forms. For coach, chair and heads the answer stands first: `Ann Lee is the chair of Acme`.
_FORM = re.compile(
    r"(.+?) (holds the position of|plays for|works for|is a member of(?: the)?|attended|is owned by"
    r"|is the (?:head coach|chair|head of (?:the )?(?:government|state)) of) (.+)"
)


def normalize(text):
    """SQuAD normalisation, in SQuAD's order: lower case, no ASCII punctuation, no articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def parse_month(text):
    """`Jan, 1968` -> 23616 = 1968 * 12 + 0. Years have three or four digits. UserError otherwise."""
    if not re.fullmatch(_MONTH, text):
        raise UserError(f"{text!r} is not a month; expected the form 'Jan, 1968'")
    return int(text[5:]) * 12 + MONTHS.index(text[:3])


def format_month(month):
    """23616 -> `Jan, 1968`; the inverse of parse_month."""
    return f"{MONTHS[month % 12]}, {month // 12}"


def parse_fact_context(text):
    """Lines of facts -> [(statement, start, end)], months inclusive. UserError names the first line that is no fact."""
    out = []
    for line in re.split(r"\s*\n\s*", text.strip()):
        m = _FACT.fullmatch(line)
        if not m:
            raise UserError(f"fact {line[:200]!r} does not end in a time; expected '... from Jan, 1968 to Mar, 1970.'")
        start, end = parse_month(m[2]), parse_month(m[3])
        if start > end:
            raise UserError(f"fact {line[:200]!r} ends before it starts; expected 'from <earlier> to <later>'")
        out.append((m[1], start, end))
    return out


def split_statement(statement):
    """`Bob Ray plays for Acme` -> (subject, relation, object); object is the part asked for. UserError if unknown."""
    m = _FORM.fullmatch(statement)
    if not m:
        raise UserError(
            f"fact {statement[:200]!r} has an unknown form; expected a form of TempReason such as 'A plays for B'"
        )
    return (m[3], m[2], m[1]) if m[2].startswith("is the ") else (m[1], m[2], m[3])


def read_tempreason(path, setting, skip_bad=False):
    """
    Yields the Examples of a TempReason file (JSON lines, plain or gzip), checked; the first wrong row is a UserError,
    or with skip_bad wrong rows are left out, and reported.
    setting: `reason` = the context is the facts, on one line; `obqa` = the context is the article.
    time: the month asked about (L2), or the interval of the gold fact (L3).
    """
    if setting not in ("reason", "obqa"):
        raise UserError(f"unknown setting {setting!r}; expected 'reason' or 'obqa'")

    def build(row):
        question = _required(row, "question")
        answers = _answers(row, "text_answers.text")
        if not answers or "" in answers:
            raise UserError("field 'text_answers.text' is empty or has a blank answer; expected one answer or more")
        text = (
            _required(row, "fact_context", MAX_LINE)
            if setting == "reason"
            else _field(row, "fact_context", default="").strip()
        )
        facts = [Fact(*split_statement(s), start, end) for s, start, end in (parse_fact_context(text) if text else [])]
        context = " ".join(line.rstrip(".") + "." for line in re.split(r"\s*\n\s*", text))
        if setting == "obqa":
            context = _field(row, "context").strip()
        month = re.search(rf" in ({_MONTH})\s*\?*$", question)
        time = (parse_month(month[1]),) * 2 if month else _gold_interval(question, answers, facts)
        accepted = set(map(normalize, answers))
        negatives = dict.fromkeys(x.strip() for x in _field(row, "neg_answers", list, default=[]))
        remote = [x for x in negatives if x and normalize(x) not in accepted]
        return Example(row["id"].strip(), question, context, answers, facts, time, remote)

    yield from _examples(path, "id", build, skip_bad)


def _gold_interval(question, answers, facts):
    """L3: interval of the gold fact; of several spells of the gold, the one next to the fact the question names."""
    gold = [f for f in facts if f.object in answers]
    m = re.search(r" (before|after) ([^?]+)\?*$", question)
    named = [f.start for f in facts if m and question.rstrip("? ").endswith(f" {m[1]} {f.object}")]
    sign = 1 if m and m[1] == "after" else -1
    # spells on the asked side of the named fact come first, then the nearest
    near = {id(g): min((((g.start - s) * sign < 0, abs(g.start - s)) for s in named), default=(0, 0)) for g in gold}
    best = min(gold, key=lambda g: near[id(g)], default=None)
    return best and (best.start, best.end)


# ---- TimeQA

_DATE = rf"(?:(early|mid|late)[ -])?(?:({'|'.join(MONTHS)})[a-z]*\.?,? )?(\d{{3,4}})(s?)\b"
_TIME = re.compile(
    rf"\b(from|between|in|during|period|after|before|until|since|by)\s+(?:the\s+)?(?:years?\s+)?{_DATE}"
    rf"(?:\s*(?:to|and|until|-|–)\s*{_DATE})?",
    re.IGNORECASE,
)


def question_time(question):
    """
    First and last month of a TimeQA question, or None: `in 1966`, `in Apr 1966`, `in late 1920s`, `from 1986 to 1987`,
    `between ... and ...`; `before`, `until`, `by` start at month 0, and `after`, `since` end at LAST_MONTH.
    """
    found = list(_TIME.finditer(question))
    m = max(found, key=lambda m: (m[8] is not None, m.start()), default=None)  # a range wins, else the last one
    if m is None:
        return None

    def interval(part, month, year, decade):
        start = int(year) * 12
        if month:
            return (start + MONTHS.index(month.title()),) * 2
        a, b = {"early": (0, 4), "mid": (3, 6), "late": (5, 9)}.get((part or "").lower(), (0, 9)) if decade else (0, 0)
        return start + a * 12, start + b * 12 + 11

    word, (start, end) = m[1].lower(), interval(*m.group(2, 3, 4, 5))
    if m[8]:
        start, end = min(start, interval(*m.group(6, 7, 8, 9))[0]), max(end, interval(*m.group(6, 7, 8, 9))[1])
    elif word in ("after", "since", "from"):
        start, end = end + 1 if word == "after" else start, LAST_MONTH
    elif word in ("before", "until", "by"):
        start, end = 0, max(start - 1, 0) if word == "before" else end
    return start, end


def read_timeqa(path, skip_bad=False):
    """Yields the Examples of a TimeQA file as read_tempreason does; without facts and negatives."""

    def build(row):
        question, context = _required(row, "question"), _required(row, "context", MAX_LINE)
        targets = _answers(row, "targets")
        if not targets or ("" in targets and len(targets) > 1):
            raise UserError(
                'field \'targets\' is empty or mixes answers with ""; expected answers, or [""] for no answer'
            )
        return Example(row["idx"].strip(), question, context, targets, time=question_time(question))

    yield from _examples(path, "idx", build, skip_bad)


# ---- official files

TIMEOUT = 60  # seconds without a byte, and until a download has to keep up MIN_RATE
MIN_RATE = 1000  # bytes a second
MAX_WAIT = 120  # seconds; no longer, where the server asks to wait
HUB = "https://huggingface.co"  # TSQA_HUB replaces it
TIMEQA = "https://raw.githubusercontent.com/wenhuchen/Time-Sensitive-QA/main/dataset"  # TSQA_TIMEQA replaces it
_FILES = {
    "tempreason-l2": "{}_l2.json",
    "tempreason-l3": "{}_l3.json",
    "timeqa-easy": "{}.easy.json",
    "timeqa-hard": "{}.hard.json",
}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps the headers of each reply that sends on to another address: the hub states the hash of a file there."""

    def __init__(self):
        self.headers = []

    def redirect_request(self, request, body, code, message, headers, url):
        self.headers.append(headers)
        return super().redirect_request(request, body, code, message, headers, url)


def _open(url):
    """Opens `url`, through the proxies of the environment -> (reply, headers of all replies on the way to it)

    Where the server is busy and says for how long, it is asked again, three times at most, after MAX_WAIT s at most.
    """
    for attempt in range(4):
        redirects, found = _Redirects(), []

        def ask(redirects=redirects, found=found):
            try:
                opener = urllib.request.build_opener(redirects)
                found.append(opener.open(urllib.request.Request(url, headers={"User-Agent": "tsqa"}), timeout=TIMEOUT))
            except (OSError, http.client.HTTPException, ValueError) as e:  # raised below
                found.append(e)

        # headers that come byte by byte never time out: the thread is left to itself then
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(2 * TIMEOUT)
        reply = found[0] if found else TimeoutError("timed out")
        if not isinstance(reply, Exception):
            return reply, [*redirects.headers, reply.headers]
        busy = isinstance(reply, urllib.error.HTTPError) and reply.code in (429, 503)
        wait = busy and re.fullmatch(r"\d{1,4}", reply.headers.get("Retry-After", ""))
        if attempt == 3 or not wait or int(wait[0]) > MAX_WAIT:
            raise reply
        print(f"{url}: the server asks to wait {wait[0]} s", file=sys.stderr)
        time.sleep(int(wait[0]))


def _stated_hash(headers):
    """What the hub says about a file: its SHA-256 (large files), its git SHA-1 (small ones), or None elsewhere."""
    linked = [h["X-Linked-ETag"] for h in headers if h.get("X-Linked-ETag")]
    plain = [h["ETag"] for h in headers[-1:] if h.get("X-Repo-Commit") and h.get("ETag")]
    hashes = [re.fullmatch(r'(?:W/)?"?([0-9a-f]{40}|[0-9a-f]{64})"?', etag) for etag in (*linked, *plain)]
    return next((m[1] for m in hashes if m), None)


def download(url, path, sha256=None, remedy="put the file there by hand"):
    """
    Fetches `url` into the file `path`: temporary name, size against Content-Length, no HTML page in place of the file,
    hash if given or stated by the hub, then rename. UserError names the URL, the path and the remedy.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of downloads that were killed
            if time.time() - old.stat().st_mtime > 24 * 3600:
                old.unlink(missing_ok=True)
        with open(temporary, "wb") as f:
            reply, headers = _open(url)
            size, got, begun = reply.headers.get("Content-Length"), 0, time.monotonic()
            size = None if size is None else int(size)
            if (size or 0) > shutil.disk_usage(path.parent).free:
                raise OSError(f"its {size >> 20} MiB are more than the disk has free")
            show = tqdm(
                total=size, desc=path.name, unit="B", unit_scale=True, leave=False, disable=not sys.stderr.isatty()
            )
            with reply, show:
                while chunk := reply.read1(1 << 20):
                    f.write(chunk)
                    got += len(chunk)
                    show.update(len(chunk))
                    if (seconds := time.monotonic() - begun) > TIMEOUT and got < MIN_RATE * seconds:
                        raise TimeoutError(f"timed out: {got} bytes in {seconds:.0f} s")
            if got != (got if size is None else size):
                raise ValueError(f"received {got} of {size} bytes")
        with open(temporary, "rb") as f:
            start = f.read(512).lstrip().lower()
            if got == 0 or start.startswith((b"<!doctype", b"<html")):
                raise ValueError("received an empty file" if got == 0 else "received an HTML page in place of the file")
            if want := (sha256 or _stated_hash(headers)):
                f.seek(0)
                digest = hashlib.sha256() if len(want) == 64 else hashlib.sha1(b"blob %d\0" % got)
                if (has := hashlib.file_digest(f, lambda: digest).hexdigest()) != want:
                    raise ValueError(f"damaged on the way: its hash is {has}, not {want}")
        os.replace(temporary, path)
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise UserError(f"cannot download {url} to {path} ({e}); {remedy}") from e
    finally:
        with contextlib.suppress(OSError):  # its folder may be no folder
            temporary.unlink(missing_ok=True)


def cache_dir():
    """Where downloads are kept: $TSQA_CACHE or ~/.cache/tsqa."""
    return Path(os.environ.get("TSQA_CACHE") or Path.home() / ".cache" / "tsqa")


def find_data(data_dir, name, split, fetch=True):
    """
    Path of the official file of `tempreason-l2|l3` or `timeqa-easy|hard`, split `train|dev|test`: in data_dir (may be
    None) or its folder `tempreason|timeqa`, plain, .gz or .gzip; else in the cache, downloaded if missing (not `fetch`: None).
    """
    if name not in _FILES or split not in ("train", "dev", "test"):
        raise UserError(f"unknown data {name!r}, split {split!r}; expected {', '.join(_FILES)} and train, dev or test")
    if data_dir is not None and not Path(data_dir).is_dir():
        raise UserError(f"{data_dir} is not a folder; expected the folder of the official files after --data-dir")
    source = name.split("-")[0]
    file = _FILES[name].format("val" if source == "tempreason" and split == "dev" else split)
    folders = [] if data_dir is None else [Path(data_dir), Path(data_dir) / source]
    for folder in (*folders, cache_dir()):
        for candidate in (folder / file, folder / f"{file}.gz", folder / f"{file}.gzip"):
            if candidate.is_file():
                return candidate
    if not fetch:
        return None
    if data_dir is not None:
        place = f"{data_dir} holds no {file}, plain, .gz or .gzip, nor does {folders[1]}"
        raise UserError(f"{place}; put it there, or leave --data-dir out to download it")
    if source == "tempreason":
        base = (os.environ.get("TSQA_HUB") or HUB).rstrip("/") + "/datasets/tonytan48/TempReason/resolve/main"
    else:
        base, file = os.environ.get("TSQA_TIMEQA", TIMEQA).rstrip("/"), f"{file}.gzip"
    target = cache_dir() / file
    download(f"{base}/{file}", target, remedy=f"put {file} into a folder and name the folder with --data-dir")
    return target


# ---- passages and batches


PASSAGES = ("relevant", "words", "first")


def select_passages(question, context, budget, count, keep="relevant"):
    """
    Shortens `context` to at most `budget` pieces; count(text) -> pieces, called about once per passage. Passages are
    sentences, cut at 60 words. keep: `relevant` = those that share most words and times with the question, in their own
    order; `words` = the same, each by its words alone, where no sentence needs its neighbours (TRAVELER's events);
    `first` = the beginning. Ours: the source is silent on long contexts.
    """
    if keep not in PASSAGES:
        raise UserError(f"unknown choice {keep!r} of passages; expected {', '.join(PASSAGES)}")
    if count(context) <= budget:
        return context
    words = [s.split() for s in SENTENCE.split(context)]
    passages = [" ".join(w[i : i + 60]) for w in words for i in range(0, len(w), 60)]
    sizes = [count(p) for p in passages]
    if keep == "first":
        order = range(len(passages))
    else:
        scores = (_relevance if keep == "relevant" else shared_words)(question, passages)
        order = sorted(range(len(passages)), key=lambda i: -scores[i])
    kept, left = set(), budget
    for i in order:
        if sizes[i] <= left:
            kept.add(i)
            left -= sizes[i]
        elif keep == "first" or not kept:  # fill up with as many words as fit, by bisection
            w = passages[i].split()
            low, high = 0, len(w) - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if count(" ".join(w[:middle])) <= left else (low, middle - 1)
            passages[i] = " ".join(w[:low])
            kept.add(i)
            break
    return " ".join(passages[i] for i in sorted(kept) if passages[i]) or context


def shared_words(question, passages):
    """One score per passage: the words that it shares with the question, no numbers; rare words count more."""
    bags = [set(re.findall(r"\w+", p.lower())) for p in passages]
    frequency, n = Counter(w for bag in bags for w in bag), len(passages)
    wanted = {w for w in re.findall(r"\w+", question.lower()) if not w.isdigit() and not STOP_WORDS.fullmatch(w)}
    return [sum(math.log(1 + n / frequency[w]) for w in sorted(wanted & bag)) for bag in bags]


def _relevance(question, passages):
    """One score per passage; the weights were chosen on TimeQA's train files (gold kept in 512 pieces)."""
    time, n = question_time(question), len(passages)
    first, last = (time[0] // 12, time[1] // 12) if time else (0, 0)
    scores = []
    for score, passage in zip(shared_words(question, passages), passages, strict=True):
        years = [int(y) for y in re.findall(r"\b(\d{3,4})s?\b", passage)] if time else []
        if any(first <= y <= last for y in years):
            score += 5 + 4 * len({first, last} & set(years))
        elif years and min(years) < first and max(years) > last:
            score += 3
        elif years:
            score += 2 * math.exp(-min(min(abs(y - first), abs(y - last)) for y in years) / 5)
        scores.append(score)
    before, after = [0, *scores[:-1]], [*scores[1:], 0]
    # neighbours hold the names that pronouns stand for; articles begin with what matters most
    return [s + 0.5 * a + 0.4 * b - 4 * i / n for i, (s, a, b) in enumerate(zip(scores, before, after, strict=True))]


def batches(lengths, batch_size=None, max_tokens=None, rng=0, shuffle=True):
    """
    Yields lists of indices into `lengths`, every index once, rows of similar length together. batch_size: most rows of
    a batch; max_tokens: most positions after padding (a longer row stands alone). rng: torch.Generator, or numpy's seed
    or Generator; a Generator moves on, so the next call gives another order. shuffle=False: longest first.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if min((x for x in (batch_size, max_tokens) if x is not None), default=0) < 1:
        raise UserError(f"batch size {batch_size} and {max_tokens} tokens; expected at least one of them, 1 or more")
    if isinstance(rng, torch.Generator):
        rng = int(torch.randint(2**62, (1,), generator=rng))
    rng = np.random.default_rng(rng)
    # blurred lengths: other companions in every epoch, and little padding
    keys = lengths * rng.uniform(0.95, 1.05, len(lengths)) if shuffle else lengths
    out, longest = [], 0
    for i in np.argsort(-keys, kind="stable").tolist():
        longest = max(longest, int(lengths[i]))
        if not out or len(out[-1]) == batch_size or (len(out[-1]) + 1) * longest > (max_tokens or math.inf):
            out.append([])
            longest = int(lengths[i])
        out[-1].append(i)
    yield from (out[i] for i in rng.permutation(len(out))) if shuffle else out


def pad(rows, value=0):
    """Lists of ids -> (ids, mask), both int64 (B, S), padded on the right with `value`; mask is 0 on the padding."""
    size = max(map(len, rows), default=0)
    ids = torch.tensor([[*row, *[value] * (size - len(row))] for row in rows], dtype=torch.int64).view(len(rows), size)
    mask = torch.tensor([[1] * len(row) + [0] * (size - len(row)) for row in rows], dtype=torch.int64)
    return ids, mask.view(len(rows), size)  # both (B, S)


# --- time tagger ------------------------------------------------------------------------------------------------------
# Word classes of the rules: one regular expression for a whole word. Each becomes a lexeme flag, which spaCy computes
# once per distinct word, so that matching stays in C.
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_CLASSES = {
    "YEAR": r"1\d{3}|20\d\d|2100",
    "Y3": r"[1-9]\d\d",
    "BIG": r"(?!(?:1\d{3}|20\d\d|2100)$)\d{3,}",  # three digits or more, and no year
    "NUM": r"\d+",
    "DAY": r"0?[1-9]|[12]\d|3[01]",
    "YY": r"\d\d",
    "HH": r"[01]?\d|2[0-4]",
    "MI": r"[0-5]\d",
    "DEC": r"(?:1\d|20)\d0",
    "D2": r"[1-9]0",
    "ORD": "(?i:st|nd|rd|th)",
    "DASH": "[-\u2010-\u2015\u2212]",
    "QUOTE": "['\u2018\u2019`]",
    "CUR": r"[$£€¥₹]|Rs",
    "CODE": "[A-Za-z]|[A-Z]{2,4}",
    "ERA": "AD|BC|BCE|CE",
    "AMPM": "(?i:[ap]m)",
    "MON": rf"(?!(?:may|march|mar)$)(?i:{_MONTHS}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)",
    "MSOLO": "January|February|July|September|October|November|December",
    "MNAME": "March|April|May|June|August",  # also verbs and first names: alone only after one of PREP or REL
    "PREP": "(?i:in|during|until|till|since)",
    "START": "In|Since|By|Until|During|After|Before|From",
    "WD": "(?i:(?:mon|tues|wednes|thurs|fri|satur|sun)days?)",
    "WDA": "Mon|Tues?|Wed|Thurs?|Thu|Fri|Sat|Sun",
    "SEASON": "(?i:spring|summer|autumn|fall|winter)",
    "EML": "(?i:early|mid|late)",
    "CAL": "(?i:day|week|weekend|fortnight|month|year|decade|century|season|night|morning|afternoon|evening)",
    "UNIT": "(?i:(?:second|minute|moment|hour|day|week|month|year|decade|season)s?|century|centuries)",
    "PART": "(?i:morning|afternoon|evening|night)s?",
    "N": "(?i:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|"
    r"hundred|several|few|many|some|\d+)",
    "REL": "(?i:next|last|previous|following|same|past|coming|preceding|subsequent|this)",
    "AGO": "(?i:ago|later|earlier|before|after|afterwards?|previously|prior|hence)",
    "ORDW": "(?i:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|"
    "fourteenth|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth)",
    "DECW": "(?i:twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties)",
    "ADV": "(?i:yesterday|today|tomorrow|tonight|recently|nowadays)",
    "HOL": "Christmas|Easter|Thanksgiving|Halloween|Ramadan|Hanukkah|Passover|Diwali|Pentecost|Midsummer|Hogmanay|"
    "Nowruz|Purim|Eid",
    # after a holiday, a weekday or `today`: a name, no time
    "NAMED": "(?i:islands?|rising|eggs?|trees?|carols?|cards?|songs?|albums?|bunny|lily|cake|lights?|markets?|"
    "times|mirror|express|telegraph|mail|league|school|shows?|programme?)",
    # a number after one of these is no year
    "LABEL": "No|Nos|Class|Type|Form|[#№§]|(?i:route|number|nr|pp?|flight|version|postcode|highway|interstate|"
    "section|article|chapter|pages?|room|model|channel|opus|op|lot|plate|bus|code|extension|ext|phone|tel|isbn|"
    "asteroid|psalms?|boeing|airbus|windows|peugeot|porsche|nokia|gate|platform|bwv|ngc|hd|rfc|iso|din|tsv|tsg|vfl|"
    "vfb|ssv|fsv|fc|afc|sc|sv|cf|ac|calcio|exactly|over|nearly|almost|scored|sold|weighs|weighed|cost|costs)",
    # a number before one of these is no year
    "COUNT": "[%°€]|(?:percent|per|people|persons?|seats?|seater|votes?|voters|goals?|points?|runs?|spectators|"
    "fans|viewers|visitors|passengers|copies|units?|members|inhabitants|residents|citizens|soldiers|troops|men|"
    "women|children|girls|boys|students|pupils|workers|employees|refugees|prisoners|casualties|deaths?|victims|"
    "patients|volunteers|players|participants|delegates|families|households|houses|homes|buildings|rooms|beds|"
    "horses|horsepower|cattle|sheep|cars|vehicles|trucks|aircraft|planes|ships|boats|tanks|guns|rounds|shares|"
    "books|pages?|words?|tickets|dollars?|euros?|pounds?|yen|francs?|rubles|rupees|crowns|guineas|cents?|million|"
    "billion|thousand|hundred|dozen|appearances|caps|times|strong|odd|islands|species|met(?:re|er)s?|(?:kilo|"
    "centi)met(?:re|er)s?|miles?|yards?|feet|foot|ft|inch|inches|acres?|hectares?|square|cubic|kilos?|"
    "(?:kilo)?grams?|tons?|tonnes?|lit(?:re|er)s?|gallons?|barrels?|watts?|volts?|calories|degrees?|bytes?|pixels?|"
    "seconds?|minutes?|hours?|hrs?|days?|weeks?|months?|years?|k?m|[cm]m|k?g|k|p|px|x|cc|hp|rpm|mhz|[mg]b|k?w|mph|"
    "kmh|lbs?|ha|sq|signatures|supporters|customers|subscribers|steps|stairs|trees|coins|paintings|items|objects|"
    "entries)",
    # from one number to another: no years
    "GREW": "(?i:grew|grows?|rose|rises?|risen|increas(?:ed?|es|ing)|reduced?|expanded?|fell|fallen|cut|dropped|"
    "declined|numbered|raised|enlarged|rang(?:ed?|es|ing)|numbers|pages)",
}
# Rules are separated by ";". Capitals: a class from above; other words: that word in any case; [a|b]: alternatives;
# "?": may be missing; "~": no space follows. The head of a line says which slices of the match are a time (the rest is
# context): ":" all, "1:2,3:" the second word and from the fourth on, "0:0" none. The longest match wins, then the
# first, so a longer "0:0" rule takes away what a shorter rule would find.
_MACROS = {
    "yr": "[YEAR|YEAR DASH YEAR|YEAR~ DASH~ YY|YEAR~ /~ YY|YEAR~ /~ YEAR|YEAR DASH present]",
    "early": "[|EML |EML~ -~ ]",
    "clock": "[HH~ :~ MI AMPM?|HH~ :~ MI~ :~ MI AMPM?|HH~ :~ MI [a|p]~ .~ m~ .]",
    "iso": "[YEAR~ -~ DAY~ -~ DAY|YEAR~ /~ DAY~ /~ DAY|YEAR~ .~ DAY~ .~ DAY]",
    "day": "[MON .? DAY ORD? ,? YEAR|the? DAY ORD? of? MON .? ,? YEAR|DAY~ -~ MON~ -~ YEAR]",
    "short": "[MON .? DAY ORD?|DAY ORD? MON]",
    "pl": "[days|weeks|months|years|decades|seasons|centuries]",
}
_RULES = r"""
: {yr} ; {early}YEAR ; the? {yr} [season|seasons] ; the year NUM ; ERA NUM ; NUM ERA ; NUM b~ .~ c~ . ; NUM a~ .~ d~ .
: {early}MON .? ,? {yr} ; MON .? , Y3 ; MON of YEAR ; MON~ -~ YEAR ; {early}MSOLO ; EML MNAME ; EML~ -~ MNAME
: MON YEAR? DASH MON ,? YEAR ; [MSOLO|MNAME] DASH [MSOLO|MNAME] ; MON DAY DASH DAY [|,? YEAR] ; DAY DASH DAY MON YEAR?
: MON DAY DASH MON DAY [|,? YEAR] ; DAY MON YEAR? DASH DAY MON YEAR? ; MON DAY , YEAR DASH MON DAY , YEAR ; {day}
: MON .? DAY ORD? [|, Y3] ; the? DAY ORD? of? MON Y3? ; the? ORDW of MON [|,? YEAR] ; {iso}
: [DAY~ /~ DAY~ /~|DAY~ .~ DAY~ .~|DAY~ -~ DAY~ -~] YEAR ; DAY~ /~ DAY~ /~ YY ; {clock} ; HH AMPM ; HH~ .~ MI AMPM
: HH [a|p]~ .~ m~ . ; N o~ QUOTE~ clock ; [{iso}] ,? [at|t]? {clock} ; [{day}|MON DAY ORD?|WD] ,? at? {clock}
: {clock} ,? on [{day}] ; [WD|WDA] .? ,? [{day}|{short}] [|,? at? {clock}] ; WD ; WD PART ; WDA ,? {clock}
: [yesterday|today|tomorrow] PART ; ADV ; the day before yesterday ; the day after tomorrow
: [|the|that] REL [CAL|WD|WD PART|MSOLO|MNAME|SEASON|HOL] ; the? REL N UNIT ; the REL {pl} ; recent {pl} ; these days
: that [CAL|summer|autumn|winter] ; the [CAL|UNIT] [before|after] ; N UNIT AGO ; a [few|couple of] UNIT AGO ; {pl} AGO
: N and a half UNIT AGO ; N [to|or|DASH] N UNIT AGO ; NUM~ ,~ NUM UNIT AGO ; half [a|an] UNIT AGO
: N [hundred|thousand|million] UNIT AGO ; [moments|minutes|hours] [ago|later|earlier]
: [some|a? long|a short|a] [time|while] AGO ; long ago ; the? {early}DEC QUOTE? s ; the? {early}QUOTE~ D2~ s
: [the|EML|the EML|EML~ -|the EML~ -] [D2~ s|DECW] ; DEC~ s DASH [DEC|D2]~ s
: the? {early}NUM~ ORD -? [century|centuries] ERA? ; [the|EML|EML~ -] [ORDW|twenty~ -~ first] -? century ERA?
: the? {early}NUM~ ORD [and|to|or|DASH] NUM~ ORD [century|centuries] ; the? {early}SEASON of? ,? {yr} ; the? EML SEASON
: EML~ -~ SEASON ; HOL [|eve|day|sunday|monday|morning|night|weekend] [|of? ,? YEAR]
: [chinese|lunar]? new year [|day|eve] YEAR? ; [new year QUOTE s|new years] [|day|eve] [|,? YEAR] ; [good|black] friday
: [palm|remembrance] sunday ; ash wednesday
: [independence|labor|labour|memorial|veterans|remembrance|bastille|boxing|australia|canada|anzac|armistice] day
: [republic|victory|valentines|mothers|fathers|all saints] day ; [valentine|mother|father|veteran] QUOTE s day
: MNAME day ; [st|saint] .? patrick [QUOTE|] s day ; st .? patricks day ; yom kippur ; rosh hashanah
1: :: at NUM [hrs|hours] ; [at|by|until|around|before|after] [noon|midnight|midday] ; PREP MNAME ; PREP MNAME DAY ORD?
1: :: PREP MNAME YEAR ; START YEAR ; START DEC~ s ; START {yr} [season|seasons] ; START NUM ERA
1: :: START [a|an|one] UNIT AGO ; [in|during|since|until|by] the? SEASON of? ,? {yr}
1: :: [in|during|since|until|by] the? [spring|summer|autumn|winter] ; [in|of|since|by] QUOTE~ YY ; circa Y3
1:2 :: in YEAR BIG ; PREP [MSOLO|MNAME] ,? NUM COUNT
2: :: YEAR from MON .? , YEAR ; c~ . Y3 ; [reigned|ruled|born|died] in Y3
1:4 :: ( Y3 – [Y3|YEAR] )
0:2 :: DAY MON ,? NUM COUNT ; MON DAY ,? NUM COUNT
1:2,3: :: [from|between] [Y3|YEAR] [to|and|until] [Y3|YEAR] ; [from|between] MON [to|and|until] MON [|DAY] [|,? YEAR]
1:2,3: :: [from|between] DAY [to|and] DAY MON YEAR? ; PREP MNAME [or|and] [MSOLO|MNAME] YEAR?
0:1,2: :: MON [to|and|or] MON YEAR
0:0 :: [HOL|WD|today] NAMED ; sheffield WD ; usa today ; [his|her|their|my|your] EML? -? [D2~ s|DECW] ; LABEL .? YEAR
0:0 :: LABEL .? YEAR DASH YEAR ; no~ . YEAR ; f~ .~ c~ . YEAR ; CUR YEAR ; CUR YEAR DASH YEAR ; YEAR COUNT
0:0 :: YEAR us dollars ; YEAR [new|more|other|registered] COUNT ; YEAR~ -~ COUNT
0:0 :: [|between|from] YEAR [DASH|and|to|or] YEAR COUNT ; [more|less|fewer] than YEAR ; at least YEAR
0:0 :: [population|attendance|capacity|crowd|audience|total|sum|price] [|of|was|is] YEAR ; GREW from NUM to NUM
0:0 :: from NUM to NUM COUNT ; YEAR [x|×|*|+|=] NUM ; NUM [x|×|*|+|=] YEAR ; YEAR~ .~ NUM ; NUM~ .~ YEAR ; YEAR~ ORD
0:0 :: CODE~ YEAR ; CODE~ -~ YEAR ; BIG YEAR ; YEAR BIG ; BIG~ [-|.|/]~ YEAR ; YEAR~ [-|.|/]~ BIG ; BIG YEAR [BIG|YEAR]
0:0 :: YEAR BIG YEAR ; BIG BIG YEAR ; BIG~ -~ [BIG|YEAR]~ -~ [BIG|YEAR] ; [YEAR|NUM]~ -~ BIG~ -~ YEAR
0:0 :: HH~ :~ MI~ .~ NUM ; NUM~ -~ YEAR~ -~ YEAR ; [john|matthew|luke|genesis|exodus|psalm|romans] HH~ :~ MI
"""


def _expand(text):
    """`a [b|c]` -> `a b`, `a c`; innermost brackets first."""
    group = re.search(r"\[([^\[\]]*)\]", text)
    if not group:
        return [text]
    choices = (text[: group.start()] + choice + text[group.end() :] for choice in group[1].split("|"))
    return [full for choice in choices for full in _expand(choice)]


_PIECE = re.compile(r"\d+|[^\W\d_]+|\s|.")
# words of the rules that make no time on their own: texts are full of them, so they must not start the matcher
_GLUE = re.compile(
    "the|an|of|in|on|at|by|to|from|and|or|until|till|since|during|between|after|before|than|for|is|was|his|her|their|my|"
    "your|this|that|same|past|few|several|some|many|one|two|three|four|five|six|seven|eight|nine|ten|couple|half|over|"
    "first|second|third|no|st|[a-z]"
)

_SAME = {  # words that no rule tells apart, and one of the same length to stand for them
    r"(?:1\d|20)\d[1-9]": "1999",
    r"(?:1\d|20)\d0": "1990",
    "1[1-9]": "11",
    "[1-9]": "1",
    "Jan|Feb|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec": "Jan",
}


def _rules():
    """`spacy.blank("en")` with an `EntityRuler` made of `_RULES`, as a function text -> [(start, end)]."""
    nlp = spacy.blank("en")
    nlp.max_length = 10**9
    # words, numbers and single signs: `1949–66`, `1989.He`, `Čakovec2005`, `2020/01/01T22:18` need no special cases
    cut = re.compile(r"(?<=\d)(?=\D)|(?<=\D)(?=\d)|(?<=[\W_])(?=.)|(?<=\w)(?=[\W_])")
    nlp.tokenizer = spacy.tokenizer.Tokenizer(nlp.vocab, infix_finditer=cut.finditer)
    classes = {name: re.compile(regex) for name, regex in _CLASSES.items()}
    flags = {name: nlp.vocab.add_flag(lambda w, r=r: bool(r.fullmatch(w))) for name, r in classes.items()}
    patterns, literals = [], set()
    for line in _RULES.strip().splitlines():
        label, rules = line.split(": ", 1) if line[0] == ":" else line.split(" :: ")
        for rule in rules.format(**_MACROS).split(" ; "):
            for words in dict.fromkeys(tuple(full.split()) for full in _expand(rule)):
                pattern = []
                for word in words:
                    name = word.rstrip("~?")
                    literals.add(name)
                    pattern.append({flags[name]: True} if name in flags else {"LOWER": name})
                    pattern[-1].update({"SPACY": False} if "~" in word else {}, **({"OP": "?"} if "?" in word else {}))
                patterns.append({"label": label or ":", "pattern": pattern})
    nlp.add_pipe("entity_ruler").add_patterns(patterns)

    @functools.lru_cache(2**16)
    def match(text):
        spans = []
        for entity in nlp(text).ents:
            for part in entity.label_.split(","):
                span = entity[slice(*(int(i) if i else None for i in part.split(":")))]
                spans += [(span.start_char, span.end_char)] if span else []
        return spans

    @functools.lru_cache(2**18)
    def look_up(word):
        """(0 = in no rule, 1 = makes no time alone, 2 = may make a time), stand-in of the same length and classes"""
        if word.isspace():
            return 1, " "  # a date may contain a line break
        weight = 2 * (word.lower() in literals or any(r.fullmatch(word) for r in classes.values()))
        if _GLUE.fullmatch(word.lower()) or not word.isalnum() or re.fullmatch("[A-Z]{2,4}", word):
            weight = min(weight, 1)
        for pattern, same in _SAME.items():
            word = same if re.fullmatch(pattern, word) else word
        return weight, word

    def find(text):
        # spaCy's matcher takes some 100 microseconds a word, as long as the NER. So it only sees runs of words that
        # occur in rules, and of the runs that no rule can tell apart (other years, other months) only the first.
        spans, run, begin, weight, position = [], [], 0, 0, 0
        for word in _PIECE.findall(text) + ["\0"]:  # the end is in no rule: it closes the last run
            heavy, same = look_up(word)
            if heavy:
                begin = begin if run else position
                weight = max(weight, heavy)
                run.append(same)
            elif run:
                if weight == 2:
                    spans += [(begin + a, begin + b) for a, b in match("".join(run))]
                run, weight = [], 0
            position += len(word)
        return spans

    return find


def _ner_pipeline(name):
    """The NER part of an installed spaCy model: `name`, or a repackaged `name_...`; UserError when there is none."""
    installed = [m for m in sorted(spacy.util.get_installed_models()) if m == name or m.startswith(name + "_")]
    try:
        nlp = spacy.load(installed[0] if installed else name)  # the name may also be a directory
    except OSError as e:
        hint = f"install it with `python -m spacy download {name}`, or use --tagger rules"
        raise UserError(f"--spacy-model: the spaCy model {name!r} is not installed: {hint}") from e
    if "ner" not in nlp.pipe_names:
        raise UserError(f"--spacy-model: the spaCy model {name!r} has no `ner` part: use another, or --tagger rules")
    listened = {p for p, component in nlp.pipeline if "ner" in getattr(component, "listening_components", ())}
    nlp.select_pipes(enable=[p for p in nlp.pipe_names if p == "ner" or p in listened])
    nlp.max_length = 10**9
    return nlp


class TimeTagger:
    """Finds temporal expressions (section 3.1 of the paper, which uses spaCy's NER).

    mode: `rules` = token patterns; `ner` = the DATE and TIME entities of `spacy_model`; `both` = their union. Articles
    and `early` or `late` belong to a span, prepositions do not: `in [the early 1970s]`. `1949–66` is one span, `from
    [1949] to [1966]` are two. UserError for an unknown mode and for a model that is not installed.
    """

    def __init__(self, mode="rules", spacy_model="en_core_web_sm"):
        if mode not in ("rules", "ner", "both"):
            raise UserError(f"--tagger: expected rules, ner or both, got {mode!r}")
        self.finders = []  # texts -> lists of spans
        if mode != "ner":
            find = _rules()
            self.finders.append(lambda texts: map(find, texts))
        if mode != "rules":
            nlp = _ner_pipeline(spacy_model)

            def times(doc):
                return [(e.start_char, e.end_char) for e in doc.ents if e.label_ in ("DATE", "TIME")]

            self.finders.append(lambda texts: map(times, nlp.pipe(texts)))

    def spans(self, text):
        """Time spans [(start, end)] in characters of `text`: sorted, disjoint, never touching."""
        return next(self.pipe([text]))

    def pipe(self, texts):
        """Yields `spans(text)` per text, in order; `ner` works in batches."""
        streams = itertools.tee(texts, len(self.finders))
        for found in zip(*(finder(stream) for finder, stream in zip(self.finders, streams))):
            merged = []
            for start, end in sorted(itertools.chain(*found)):
                if merged and start <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
                else:
                    merged.append((start, end))
            yield merged


# ----------------------------------------------------------------------------------------------------------------------
# tokenizer

PAD, EOS, UNK = 0, 1, 2  # T5's fixed ids; the decoder starts with PAD


class Tokenizer:
    """SentencePiece as T5 ships it: a directory with `spiece.model`; after its pieces come 100 sentinels, counted down.

    Plain SentencePiece, without the special treatment of `</s>` or `<extra_id_0>` inside a text: that is how T5 was trained.
    U+2581 is its own sign for a space, and comes back as one.
    """

    def __init__(self, directory):
        path = Path(directory) / "spiece.model"
        if not path.is_file():
            raise UserError(f"{path} is missing; expected T5's SentencePiece model beside the weights")
        with open(path, "rb") as f:
            self.model_bytes = f.read(MAX_PIECES + 1)
        try:
            if len(self.model_bytes) > MAX_PIECES:
                raise OSError(f"more than {MAX_PIECES >> 20} MiB")
            self.sp = sentencepiece.SentencePieceProcessor(model_proto=self.model_bytes)
            [self.sp.id_to_piece(i) for i in range(self.sp.get_piece_size())]
        except (RuntimeError, OSError, UnicodeError) as e:
            raise UserError(f"{path} is not a SentencePiece model ({e}); fetch the file again") from None
        if (self.sp.pad_id(), self.sp.eos_id(), self.sp.unk_id()) != (PAD, EOS, UNK):
            raise UserError(f"{path} is no T5 vocabulary: expected ids 0, 1, 2 for padding, end and unknown")
        self.size = self.sp.get_piece_size()  # pieces; the embedding matrix has more rows

    def sentinel(self, k):
        """Id of `<extra_id_k>`, 0 <= k < 100: 32099 - k for T5's 32,000 pieces."""
        return self.size + 99 - k

    def encode(self, text, max_length=None):
        """Ids ending in exactly one EOS, at most max_length of them, EOS included."""
        ids = self.sp.encode(text)
        return ids[: max_length and max_length - 1] + [EOS]

    def encode_with_offsets(self, text):
        """(ids, [(start, end)]): the characters of `text` behind each id; EOS stands for the empty end of the text."""
        out = self.sp.encode(text, return_type="offset_mapping")
        return [*out["ids"], EOS], [*out["offsets"], (len(text), len(text))]

    def pieces(self, text):
        """Ids of `text` as it stands after a space: without EOS."""
        return self.sp.encode(text)

    def glue(self, text):
        """Ids of punctuation that follows the piece before it without a space."""
        return [self.sp.piece_to_id(c) for c in text]

    def decode(self, ids):
        """Text up to the first EOS; ids without a text (padding, sentinels, unused rows) are left out."""
        ids = [int(i) for i in ids]  # a row of a tensor too
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        return self.sp.decode([i for i in ids if UNK < i < self.size]).strip()

    def save(self, directory):
        """Write `spiece.model` and what `transformers` wants beside it."""
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "legacy": True, "model_max_length": 10**9}
        write_atomic(Path(directory) / "spiece.model", self.model_bytes)
        write_atomic(Path(directory) / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")


# ----------------------------------------------------------------------------------------------------------------------
# made-up names

# One sound a line: onsets | vowels | codas | endings. Rough imitations of how names look; nothing is a list of names.
SOUNDS = """b br c ch cl d dr f g gr h j k l m n p r s sh st t th w wh|a e i o u ea oo ai|l n r s t ck nd rd|ton ley ford ham bury field worth
b c d f g l m n p r s t v gu qu ll ch|a e i o u ia ie|n r s l|ez ero illo ada ón ía ina oso ario
b v d z k l m n p r s t č š ž j dr kr sl zd|a e i o u|n r l k v|ić ov ek ová in sky ec ice ak
b br d f fr g h k kl l m n r s sch st t w z|a e i o u ei au ö ü ä ie|l n r ß tz ch rn|berg mann stein er dorf hausen bach
b br c ch d f g gr j l m n p r s t v|a e i o u é è ou oi eau an|r l n t s|ier ais eux ette ville ard ot enne
b d f g h j k l m n r s t v sk str|a e i o u å ø æ y|l n r k s d|sen vik strand lund gaard by nes dal
b c d g h k l m n r s t y z ş ç|a e i ı o u ü ö|l n r k z ğ|oğlu lar köy tepe can gül er
b ch d g h j k m n r s sh t ts y z|a e i o u|n|ra ki moto yama shi saka no da
b d f g h j k l m n r s t z q kh|a i u aa|d f l m n r b|i ani awi an abad ullah
ch sh zh d f g h j l m n p q t w x y|a e i o u ao ei ia uo|n ng|an en ing
b c d g k l m n p r s sz t w z ł|a e i o ó y ą ę|k l n r sz ń|ski cki owicz ów ek no
b d f g h k l m n p r s t v gy sz|a e i o u á é í ö ő|k l n r s sz|y i fi falva hely ás
b d ff g ll m n p r rh t w y|a e i o u w y|n r s dd l th|wyn eth an og
б в г д ж з к л м н п р с т|а е и о у я|н р л к|ов ин ский ева енко
β γ δ θ κ λ μ ν π ρ σ τ φ|α ε η ι ο ω|ς ν ρ|ιδης πουλος άκης ου"""
SOUNDS = [[part.split() for part in line.split("|")] for line in SOUNDS.splitlines()]
SOUND_WEIGHTS = [30, 8, 8, 8, 8, 6, 4, 5, 5, 4, 5, 3, 3, 0.5, 0.5]

# Templates, parted by "; ". {w} word, {c} country, {f} field of government, {s} study, {l} letters, {d} small number,
# {y} year, {o} and {home} ordinal and country shared by the answers of one question, {a} creed and {b} body of a party.
TEMPLATES = {
    "person": "{w} {w}; {w} {w}; {w} {w}; {w} {w}; {w} {w}; {w} {w}; {w} {w}; {w} {w}; {w} {w} {w}; {w} {L}. {w}; {w} {L}. {w};"
    " {w} de {w}; {w} van {w}; {w} von {w}; {w} al-{w}; {w} da {w}; {w} y {w}; {L}. {L}. {w}; {w} {w}-{w}; {w}; {w};"
    " Sir {w} {w}, {o} Baronet; {w} {w}, {o} Earl of {w}; {w} {w}, Baron {w}; Lord {w} {w}; {w} {w}, {o} Duke of {w};"
    " {w} {w} (politician); {w} {w} (footballer); {w} {w} (bishop); {w} {w} Jr.; {w} {w} III; Princess {w} of {w}; {w} of {w}; {w}'{w};"
    " {w} {L}. {L}. {w}; {w} bin {w}; {w} {w} Sr.; {w} Mc{w}; {w} {w} of {w}; {w} {w}, Lord {w}; {w} {w} (musician); Dr. {w} {w}; {w} d'{w};"
    " Sir {w} {w}; {w} Ó {w}; {w} ibn {w}; {w} {w} e {w}; {w} {w} the {w}; {w} {w} (born {y})",
    "country": "{k}; {k}; {k}; {k}; {k}; {k}; United Kingdom of {k}; Republic of {k}; New {k}; South {k}; United {k} Provinces; Kingdom of {k}",
    "club": "{w} F.C.; {w} F.C.; {w} F.C.; {w} FC; FC {w}; {w} United F.C.; {w} City F.C.; {w} Town F.C.; {l} {w}; {l} {w}; {l} {w};"
    " {L}.{L}. {w}; {L}.{L}.{L}. {w}; {w} {l}; {w} A.F.C.; {w} {w}; {w} {w} F.C.; A.C. {w} Calcio; Club Deportivo {w}; C.D. {w};"
    " Real {w}; Sporting {w}; {w} County Cricket Club; {w} Rovers F.C.; {w} Athletic F.C.; {w} Tigers; {w} Blizzard; {w} Knights;"
    " {w} Wanderers; {w} Kings; {d}. FC {w}; {w} 0{d}; {w} F.C. Women; {l} {w} {y}; SV {w}; Dynamo {w}; {w} II; {w}; {w}-{w};"
    " {c} national football team; {c} national under-2{d} football team; {c} women's national football team; {c} U2{d} soccer team;"
    " {c} national cricket team; {c} B national football team; {c} women's national under-1{d} football team; Club {w} de {w}; {w} Football Club; FK {w}; {w} SK; {w} IF;"
    " A.S. {w} {w}; {w} & {w} Albion F.C.; 1. {w}; {w} United Football Club; {w} Women's Football Club; {w} F.C. Reserves and Academy; {w} B;"
    " {w} (basketball); Deportes {w}; US {w} {y}; {w} Olympique; {w}-{w} {l}; {c} women's national football team; {c} national rugby union team;"
    " Atlético {w} B; {w} de {w}; {c} national under-2{d} association football team; {w} Red {w}; {c} Olympic football team",
    "school": "University of {w}; University of {w}; {w} University; {w} University; {w} University of {s}; University of {w}, {w};"
    " {w} Institute of {s}; Technical University of {w}; {w} College, {w}; {w} College; École {w} de {w}; Universität {w};"
    " Universidad de {w}; Hochschule für {w} {w}; {w} School of {s}; {w} State University; Royal {w} Academy of {s};"
    " Conservatoire national de {w}; {w} Academy of Sciences; Imperial {w} University; St. {w}'s College; National University of {c};"
    " {w}–{w} University; {w} Grammar School; {w}'s Academy; {w} and {w} University; University of {s} {w}; {w} Law School; {w} School of {s} and {s}; Academy of {s}, {s} and {s} in {w};"
    " {s} University of {w}; University of {w} Faculty of {s}; Academy of {s}, {w}; Academy of {s} in {w}; {w} Gymnasium; Lycée {w}-{w};"
    " University of {w} at {w}; {w} University of {s} and {s}; {w} University ({w}); Faculty of {s} of the {w} University; {w} College of {s};"
    " Queen's College, {w}; {w} Higher School of {s}; Seminary of {w}; Royal Military Academy {w}; {w} School of {s}, University of {w}",
    "employer": "{school}; {school}; {school}; {school}; {school}; {school}; {school}; {school}; {school}; {school}; {w} Company; {w} & {w};"
    " The {w} Times; {w} Museum; Radio {w}; {w} Group; {w}, Inc.; Bank of {w}; {w} Records; Le {w}; {w} Daily News; {w} Press;"
    " National Gallery of {w}; {w} Laboratories; {w} {d}; {l}; {w} Hospital; Max {w} Institute for {s}; L'{w}; {w}; {w} {w}; {w} ({c}); {w}.com; {x}.{e}; {w} Center for {s} Research; National Centre for {s} Research of {c};"
    " {w} Symphony Orchestra; Orchestra of {w} in the {w}; Ministry of {f} of {c}; Ministry of {f}; {w} State Theatre; {w} Broadcasting Corporation;"
    " Department of {s}, {w} University; Academy of {w} in the {w}; {w} and {w} Theatre; Institute for {s} of the {w} Academy; {w} Information Systems;"
    " Council for {s} and {s}; {w} Motors; {w} of the {w}; International Organization for {s}; {w} Airlines; International Court of {f};"
    " International Tribunal for the {w} of the {w}; {w} Commission for {f} of the {w}; {w} Council for the {w} of {c}; Federal Office of {f}; {w} Municipality; {w} (newspaper)",
    "party": "{a} {b} of {c}; {a} {b}; {a} {b}; {a} {w} {b}; {w} {a} {b}; {w}'s {k} Party; {w} {w}; {a} {b} ({k}); {k} {a} {b};"
    " Party of {a} {w}; {a} {b} of {k} ({a}); {w}; {w} {w} (19{d}{d}); {a} {b} (19{d}{d}); {a} {b} for {k}; {a} and {a} {b};"
    " {w} {b} – {w} of {w}; {b} of {a}s and {a}s; {a} {b}/{a} {b}; {w} – {a} {b}; {k} First; {w} of {k}; {a}–{a} {b}; {l}; {b} for {w} and {w}",
    "position": "Member of the {o} Parliament of the {home}; Member of the {o} Parliament of the {home}; Member of the {o} Parliament"
    " of the {home}; Member of the {o} Parliament of the {home}; Member of the {o} {home} Parliament; Member of the {o} Parliament of {home};"
    " member of the {o} Congress of {home}; Member of the {o} Assembly of {home}; Member of the {o} Bundestag of {home};"
    " Minister of {f} of {home}; Minister of {f} of {home}; Minister of {f}; Minister for {f}; Minister for {f} of {home}; {k} Minister of {f};"
    " Prime Minister of {home}; President of {home}; Deputy Prime Minister of {home}; Ambassador of {k} to {c}; {k} Ambassador to {k};"
    " Governor of {w}; Mayor of {w}; Lord Mayor of {w}; Member of the House of Lords; Member of the House of Deputies of {home};"
    " member of the {k} House of Representatives; member of the Parliament of {c}; member of the National Assembly of {c};"
    " member of the State Senate of {w}; Secretary of State for {f}; Under-Secretary of State for {f}; Chief Secretary to the {w};"
    " Speaker of the {w}; Bishop of {w}; Archbishop of {w}; Roman Catholic Archbishop of {w}; auxiliary bishop of {w}; titular bishop of {w};"
    " Attorney General of {home}; Chairman of the {w} Committee; Chief of the {k} Police; Leader of the Opposition of {home};"
    " Shadow Minister for {f}; Commissioner for {f} and {f}; King of {c}; Premier of {w}; Judge of the {w} Court; apostolic nuncio to {k};"
    " Representative of the {w} Assembly; Secretary-General of the {w}; deputy member of the Parliament of {home}; Minister without portfolio;"
    " Permanent Representative of {k} to the {w}; Chief Justice of {home}; Lord Lieutenant of {w}; First Lord of the {w}; Leader of the {w} {b}; {f} Minister of {c}; {f} Minister;"
    " President of the Council of {w}; Minister for {f}, {f} and {f}; Minister of {f} and {f} of {home}; member of the Landtag of {w}-{w};"
    " member of the Landtag of {w} {w}-{w}; Chancellor of the {w}; Attorney General for {k} and {k}; High Commissioner of {k} to {k};"
    " Parliamentary Under-Secretary of State for {f} and {f}; deputy chairman of the {w}; {o} President of {home}; Consul General of {k} in {w};"
    " President of the {w} Regional Council; Master of the {w}; Governor-General of {c}; Mayor of the Municipality of {w}; head of {w};"
    " chairperson of the {w} Commission on {f}; Shadow {w} Chancellor; Executive Secretary of the {k} Department of {w}; {k} Ambassador to the {w};"
    " Under Secretary of State for {f}; Member of the {w} State Parliament; Member of the {o} {w} Assembly; Chief Whip of the {w}; judge",
    "owner": "{employer}; {employer}; {employer}; {person}",
    "x": "{w}; {w}",
    "e": "org; net; de; ru; fr",
    "f": "Finance; Defence; Health; Justice; Education; Culture; Labour; Trade; Transport; Agriculture; Energy; the Interior; Sport;"
    " Foreign Affairs; the Navy; Public Works; Science; Housing; Social Affairs; the Environment; Industry; Women; Posts; War;"
    " Commercial Marine; the Colonies; Economic Affairs",
    "s": "Technology; Medicine; the Arts; Economics; Mining; Music; Agriculture; Fine Arts; Applied Sciences; Theology; Law; Physics",
    "a": "National; Liberal; Conservative; Social Democratic; Christian; People's; Labour; Green; Republican; Radical; Progressive;"
    " Agrarian; Communist; Independent",
    "b": "Party; Party; Party; Union; Front; Movement; Alliance; League; Bloc; Coalition",
}
TEMPLATES = {kind: [t.strip() for t in text.split(";")] for kind, text in TEMPLATES.items()}


def split_of(word):
    """The split that owns a made-up word: a hash decides, so that train, dev and test share no name at all."""
    h = zlib.crc32(word.lower().encode()) % 10
    return ("test", "dev")[h] if h < 2 else "train"


class Names:
    """Made-up names that belong to one split, drawn from `rng`."""

    def __init__(self, rng, split):
        self.rng, self.split = rng, split

    def word(self, sound=None, end=None):
        r = self.rng
        onsets, vowels, codas, ends = sound or r.choices(SOUNDS, SOUND_WEIGHTS)[0]
        while True:
            w = "" if r.random() < 0.85 else r.choice(vowels)
            for _ in range(r.choice((1, 1, 2, 2, 3))):
                w += r.choice(onsets) + r.choice(vowels) + (r.choice(codas) if r.random() < 0.35 else "")
            w += end or (r.choice(ends) if r.random() < 0.5 or len(w) < 4 else "")
            if 3 <= len(w) <= 14 and split_of(w) == self.split:
                return w[0].upper() + w[1:]

    def draw(self, kind, home="", number=1, series=None):
        """A name of a kind of TEMPLATES, or of the template `series`; home and number are for the answers of a question."""
        r, sound = self.rng, self.rng.choices(SOUNDS, SOUND_WEIGHTS)[0]

        def fill(match):
            key = match[1]
            if key == "w":  # one name mostly keeps to one language
                return self.word(sound if r.random() < 0.8 else None)
            if key == "k":
                return self.word(SOUNDS[0], r.choice(("ia", "land", "mark", "stan", "avia", "onia", "any")))
            if key in TEMPLATES or key == "c":
                return self.draw("country" if key == "c" else key)
            if key in ("L", "l"):
                return "".join(r.choices("ABCDEFGHIJKLMNOPRSTUVWZ", k=1 if key == "L" else r.choice((2, 2, 3))))
            if key == "o":
                return ordinal(number)
            if key == "home":
                return home
            return str(r.randint(1, 9) if key == "d" else r.randint(1890, 1960))

        while True:
            name = re.sub(r"\{(\w+)\}", fill, template := series or r.choice(TEMPLATES[kind]))
            # "Minister of Finance" holds no made-up word, so the whole of it belongs to one split
            if (
                kind in "fsabe"
                or re.search(r"\{(w|k|c|home|school|employer|person)\}", template)
                or split_of(name) == self.split
            ):
                return name

    def several(self, kind, n):
        """n different names of a kind, with one country and ascending ordinals: the answers of one question.

        Half of the careers are in one parliament, so that most answers differ by their ordinals alone.
        """
        home, number, out, series = self.draw("country"), self.rng.randint(1, 50), [], None
        if kind == "position" and self.rng.random() < 0.5:
            series = self.rng.choice([t for t in TEMPLATES[kind] if "{o}" in t])
        while len(out) < n:
            number += 1
            one = series if self.rng.random() < 0.85 else None
            name = self.draw(kind, home, number if kind == "position" else self.rng.randint(1, 12), one)
            if name not in out:
                out.append(name)
        return out


def ordinal(n):
    """1 -> 1st, 12 -> 12th"""
    return f"{n}" + ("th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th"))


# ----------------------------------------------------------------------------------------------------------------------
# mini: an endless data set from a seed, no files

RELATIONS = {  # name: (weight, kind of subject, kind of answer, fact, question)
    "position": (30, "person", "position", "{s} holds the position of {o}", "Which position did {s} hold"),
    "team": (24, "person", "club", "{s} plays for {o}", "Which team did {s} play for"),
    "employer": (20, "person", "employer", "{s} works for {o}", "Which employer did {s} work for"),
    "party": (5, "person", "party", "{s} is a member of the {o}", "Which political party did {s} belong to"),
    "school": (8, "person", "school", "{s} attended {o}", "Where was {s} educated"),
    "coach": (6, "club", "person", "{o} is the head coach of {s}", "Who was the head coach of the team {s}"),
    "chair": (7, "employer", "person", "{o} is the chair of {s}", "Who was the chair of {s}"),
    "government": (
        2,
        "country",
        "person",
        "{o} is the head of the government of {s}",
        "Who was the head of the government of {s}",
    ),
    "owner": (3, "employer", "owner", "{s} is owned by {o}", "Who was the owner of {s}"),
}
OPEN_END = 2022 * 12 + 11  # TempReason writes an open end as "Dec, 2022"


def timeline(rng, n, begin=None):
    """Up to n intervals (start, end), months, both inclusive: back to back, gaps, overlaps, no length, an open end."""
    years = rng.random() < 0.55  # many sources know only the year: everything starts and ends in January
    step = 12 if years else 1
    era = rng.random()
    first = (1930, 2012) if era < 0.6 else (1750, 1930) if era < 0.88 else (1000, 1750) if era < 0.95 else (600, 1000)
    t = 12 * rng.randint(*first) + (0 if years else rng.randint(0, 11)) if begin is None else begin
    touch, overlap = rng.choice((0.2, 0.5, 0.8)), rng.choice((0.0, 0.0, 0.1, 0.3))
    longest, out = rng.choice((3, 6, 12)) * (1 if years else 12), []
    while len(out) < n and t <= OPEN_END:
        long = 0 if rng.random() < 0.07 else step * rng.randint(1, longest)
        end = min(t + long, OPEN_END)
        out.append((t, end))
        chance = rng.random()
        if chance < overlap:
            t += step * rng.randint(0, max(1, long // step))
        elif chance < overlap + (1 - overlap) * touch:
            t = end
        else:
            t = end + step * rng.randint(1, 4 if years else 30)
    if rng.random() < 0.25 and out[-1][0] > 1950 * 12:
        out[-1] = (out[-1][0], OPEN_END)
    return out


def facts_of(rng, names, relation, n, subject=None, begin=None):
    """n facts of one (subject, relation) with different answers, in order of time."""
    _, subject_kind, kind, _, _ = RELATIONS[relation]
    subject = subject or names.draw(subject_kind, number=rng.randint(1, 12))
    intervals = timeline(rng, n, begin)
    objects = names.several(kind, len(intervals))
    return [Fact(subject, relation, o, *span) for o, span in zip(objects, intervals)]


def unmarked(fact, part, text):
    """The default `mark` of the texts below: pretraining hangs labels on the parts object, start, end and stop."""
    return text


def statement(fact, mark=unmarked):
    """A fact in TempReason's form, without its full stop."""
    text = RELATIONS[fact.relation][3].format(s=fact.subject, o=mark(fact, "object", fact.object))
    start, end = mark(fact, "start", format_month(fact.start)), mark(fact, "end", format_month(fact.end))
    return f"{text} from {start} to {end}"


def ask(rng, facts, level):
    """A question about the facts (all of one subject and relation) -> (question, answers, time) or None if there is none.

    l2: all objects whose interval contains a month. l3: the neighbour in time of one answer, where it does not overlap it.
    """
    stem = RELATIONS[facts[0].relation][4].format(s=facts[0].subject)
    if level == "l2":
        f = rng.choice(facts)
        t = rng.choice((f.start, f.end)) if rng.random() < 0.12 else rng.randint(f.start, f.end)
        golds = [g for g in facts if g.start <= t <= g.end]
        return f"{stem} in {format_month(t)}?", [g.object for g in golds], (t, t)
    order = sorted(facts, key=lambda f: (f.start, f.end))
    pairs = [(a, b) for a, b in itertools.pairwise(order) if a.end <= b.start and a.start < b.start]
    starts = [f.start for f in facts]
    pairs = [(a, b) for a, b in pairs if starts.count(a.start) == starts.count(b.start) == 1]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    word, known, gold = rng.choice((("after", a, b), ("before", b, a)))
    return f"{stem} {word} {known.object}?", [gold.object], (gold.start, gold.end)


PERSON_RELATIONS = ("position", "team", "employer", "party", "school")  # a biography mixes these
PROSE = {  # {p} who it is about, {o} the answer, {t} a time phrase, {r} a range, {a} and {b} its ends; parted by "|"
    "position": "{p} served as {o} {t}.|{p} was {o} {t}.|{p} was appointed {o} in {a}, an office held until {b}."
    "|As {o} ({r}), {p} was often away.",
    "team": "{p} played for {o} {t}.|{p} signed for {o} in {a} and left in {b}.|{p} spent some seasons ({r}) with {o}."
    "|{p} appeared for {o} {t}.",
    "employer": "{p} worked for {o} {t}.|{p} joined {o} in {a} and stayed until {b}.|{p} was on the staff of {o} {t}."
    "|There followed work at {o} ({r}).",
    "party": "{p} was a member of the {o} {t}.|{p} entered the {o} in {a} and left it in {b}.|{p} stood for the {o} ({r}).",
    "school": "{p} studied at {o} {t}.|{p} was educated at {o} ({r}).|{p} entered {o} in {a} and graduated in {b}.",
    "coach": "{o} coached {p} {t}.|{o} took over {p} in {a} and was replaced in {b}."
    "|With {o} as head coach ({r}), {p} changed its style.",
    "chair": "{o} chaired {p} {t}.|{o} was elected chair of {p} in {a} and stepped down in {b}.|Under {o} ({r}), {p} grew.",
    "government": "{o} led the government of {p} {t}.|{o} formed a government of {p} in {a} that lasted until {b}.",
    "owner": "{o} owned {p} {t}.|{o} bought {p} in {a} and sold it in {b}.|{p} belonged to {o} ({r}).",
    # other events of the same years: the stuff of proximal negatives
    "aside": "In {y}, {p} received the {w} Prize.|In {m} {y}, the {w} Stadium was opened.|{w} {w}, a rival, died in {y}."
    "|{p} was awarded an honorary degree by the University of {w} in {m} {y}.|At the age of {d}7, {p} moved to {w}."
    "|In the {z}s, {w} {w} wrote a column about {p}.|A match against {w} F.C. in {y} drew 1{d},{d}00 people."
    "|The {w} Commission met from {y} to {y2}.|{p} was elected a fellow of the {w} Society in {y}."
    "|{w} {w} was the secretary of the {w} Club ({y}–{y2}).",
}
PROSE = {kind: text.split("|") for kind, text in PROSE.items()}


def date_in_prose(month, years):
    """`1949` where only years are known, else `March 1949`"""
    return str(month // 12) if years else f"{calendar.month_name[month % 12 + 1]} {month // 12}"


def in_years(facts):
    """Whether prose tells these facts in years alone: none begins or ends within a year."""
    return all(f.start % 12 == 0 and f.end % 12 in (0, 11) for f in facts)


def tell(rng, fact, years, mark=unmarked):
    """A fact as a sentence of prose: one of several wordings, the time as one of several phrases."""
    a, b, open_end = date_in_prose(fact.start, years), date_in_prose(fact.end, years), fact.end == OPEN_END
    short = b[2:] if years and a[:2] == b[:2] and len(a) == 4 else b  # 1949–66
    a, b, short = mark(fact, "start", a), mark(fact, "end", b), mark(fact, "end", short)
    forms = PROSE[fact.relation]
    if fact.start == fact.end or open_end:
        form, time = forms[0], f"in {a}" if fact.start == fact.end else f"since {a}"
    else:
        form = rng.choice(forms)
        time = rng.choice(("from {a} to {b}", "from {a} until {b}", "between {a} and {b}")).format(a=a, b=b)
    brief = short != b and rng.random() < 0.5
    text = form.format(
        p=fact.subject, o=mark(fact, "object", fact.object), t=time, a=a, b=b, r=f"{a}–{short if brief else b}"
    )
    return text[:-1] + mark(fact, "stop", ".")


def other_groups(rng, names, facts):
    """Facts of up to two other relations of the same person, from about the same time; none for other subjects."""
    if facts[0].relation not in PERSON_RELATIONS:
        return []
    others = rng.sample([r for r in PERSON_RELATIONS if r != facts[0].relation], rng.randint(0, 2))
    return [facts_of(rng, names, r, rng.randint(1, 2), facts[0].subject, facts[0].start) for r in others]


def biography(rng, names, groups, mark=unmarked):
    """Prose that tells all facts of several groups, shuffled among asides from the same years."""
    facts = [f for group in groups for f in group]
    subject, sentences = facts[0].subject, []
    for group in groups:
        sentences += [tell(rng, f, in_years(group), mark) for f in group]
    for _ in range(rng.randint(1, 4)):
        f = rng.choice(facts)
        y = rng.randint(f.start, f.end) // 12
        d, m = rng.randint(1, 6), calendar.month_name[rng.randint(1, 12)]
        text = re.sub(r"\{w\}", lambda _: names.word(), rng.choice(PROSE["aside"]))
        sentences.append(text.format(p=subject, y=y, y2=y + rng.randint(1, 5), z=y // 10 * 10, d=d, m=m))
    rng.shuffle(sentences)
    return " ".join(sentences)


def mini(split, level="mix", setting="mix", n=1000, seed=0, scale=1):
    """Yields n generated Examples; the same arguments give the same examples. No name occurs in two splits.

    split: train, dev, test; level: l2 (a month is given), l3 (before or after another answer), mix; setting: reason (the
    context is the facts), obqa (a biography in prose, sometimes without an answer), mix. scale: so many times the
    facts about what is asked, for longer contexts than in training. Facts are in `facts`.
    """
    choices = {"split": ("train", "dev", "test"), "level": ("l2", "l3", "mix"), "setting": ("reason", "obqa", "mix")}
    for name, value in (("split", split), ("level", level), ("setting", setting)):
        if value not in choices[name]:
            raise UserError(f"mini has no {name} {value!r}; expected one of {', '.join(choices[name])}")
    rng = random.Random(f"mini {split} {level} {setting} {seed}")
    names, made = Names(rng, split), 0
    weights = [r[0] for r in RELATIONS.values()]
    while made < n:
        lv = rng.choice(("l2", "l3")) if level == "mix" else level
        st = rng.choice(("reason", "obqa")) if setting == "mix" else setting
        relation = rng.choices(list(RELATIONS), weights)[0]
        size = rng.choice((3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12)) if st == "reason" else rng.randint(2, 5)
        facts = facts_of(rng, names, relation, scale * size)
        if scale > 1 and len(facts) < scale * size:  # the timeline reached the present
            continue
        asked = (ask if st == "reason" else ask_prose)(rng, facts, lv)
        if asked is None:
            continue
        question, answers, time = asked
        if st == "reason":
            rng.shuffle(facts)
            context = " ".join(f"{statement(f)}." for f in facts)
        else:
            groups = [facts, *other_groups(rng, names, facts)]
            facts = [f for group in groups for f in group]
            context = biography(rng, names, groups)
        yield Example(
            f"mini-{split}-{lv}-{st}-{seed}-{made}" + f"-x{scale}" * (scale != 1),
            question,
            context,
            answers,
            facts,
            time,
        )
        made += 1


def ask_prose(rng, facts, level):
    """`ask` for prose, which often tells the year alone: only questions that the years decide; a gap has no answer."""
    if level == "l3":
        return ask(rng, facts, level) if len({f.start // 12 for f in facts}) == len(facts) else None
    bounds = {month // 12 for f in facts for month in (f.start, f.end)}
    years = range(min(bounds) + 1, min(max(bounds), OPEN_END // 12))
    months = [12 * y + rng.randint(0, 11) for y in years if y not in bounds]
    inside = [t for t in months if any(f.start <= t <= f.end for f in facts)]
    gaps = [t for t in months if t not in inside]
    pool = gaps if gaps and rng.random() < 0.4 else inside
    if not pool:
        return None
    t = rng.choice(pool)
    stem = RELATIONS[facts[0].relation][4].format(s=facts[0].subject)
    return f"{stem} in {format_month(t)}?", [f.object for f in facts if f.start <= t <= f.end] or [""], (t, t)


# ----------------------------------------------------------------------------------------------------------------------
# negative answers, section 3.2 of the paper: remote = same subject and relation, other time; proximal = same time

_BRACKET = re.compile(r"(?<=\S)\s*\([^()]*\)\s*$")
_CAPITAL = "".join(c for c in map(chr, range(0x530)) if c.isupper())
_NAME = rf"[{_CAPITAL}][\w'’.&-]*"
_NAME = re.compile(rf"{_NAME}(?:(?: (?:of|for|the|de|del|du|da|di|la|van|von|der|den|y|&))* {_NAME})*")
_NOUN = re.compile(rf" (?!{STOP_WORDS.pattern}\b)[a-z]")  # after `American`, the first word of a sentence and the like
# "." ends a sentence after three letters or two digits, not after `F.C.` or `St.`; `1997.He` has no space
_END = re.compile(
    rf"(?:(?<=[\w)\]]{{3}}[.!?])|(?<=\d\d[.!?])|(?<=[.!?]{{2}}))\s*(?=[{_CAPITAL}\"“(])|(?<= [.!?])\s|\s*\n\s*|$"
)
_tagger = functools.cache(lambda: TimeTagger("rules"))


@functools.lru_cache(2**18)
def _alias_key(text):
    text = normalize("".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)))
    return re.sub(r"^university of (.+)", r"\1 university", re.sub(r"^a?fc (?=.)|(?<=.) a?fc$", "", text))


def same_answer(a, b):
    """Whether two texts are one answer: equal after normalisation, or aliases such as `University of X`, `X University`.

    `X F.C.`, `FC X`, `X A.F.C.` = `X`; accents do not count, nor a bracket at the end that only one of them has. Numbers
    do: a member of the 17th Parliament is not one of the 18th.
    """
    x, y, bare_x, bare_y = map(_alias_key, (a, b, _BRACKET.sub("", a), _BRACKET.sub("", b)))
    return x == y or bare_x == y or x == bare_y


class FactIndex:
    """The distinct facts of some examples, to be looked up by time."""

    def __init__(self, examples):
        facts = {(f.subject, f.relation, f.object, f.start, f.end): f for ex in examples for f in ex.facts}
        self.facts, self.relations = list(facts.values()), np.array([key[1] for key in facts], dtype=object)
        self.spans = np.array([key[3:] for key in facts], dtype=np.int64).reshape(-1, 2)  # (N, 2)

    def overlapping(self, spans, relation, rng, tries=64):
        """Yields facts that share a month with one of `spans`, in random order, those of the same relation first."""
        hit = np.any([(self.spans[:, 0] <= b) & (self.spans[:, 1] >= a) for a, b in spans], axis=0)
        for same in (self.relations == relation, self.relations != relation):
            found = np.flatnonzero(hit & same).tolist()
            yield from (self.facts[i] for i in rng.sample(found, min(tries, len(found))))


def _meets(time, spans):
    return any(time[0] <= last and first <= time[1] for first, last in spans)


def months_in(text, spans):
    """First and last month named by the time expressions (spans of TimeTagger) of a sentence; None if they name none."""
    months, later = [], lambda m: f"{m[1]}{m[2]} {int(m[1]) + (m[3] < m[2])}{m[3]}"  # 1949–66 -> 1949 1966
    for a, b in spans:
        span = re.sub(r"\b(\d\d)(\d\d)[-–/](\d\d)\b(?!-)", later, text[a:b])
        span = re.sub(r"(?<=[a-z]) \d\d?(?:st|nd|rd|th)? ?,?(?= \d{3})", "", span)  # July 2, 1911
        found = [question_time(f"in {m[0]}") for m in re.finditer(rf"\b{_DATE}", span, re.IGNORECASE)]
        found += [(int(c) * 1200 - 1200, int(c) * 1200 - 1) for c in re.findall(r"(\d+)(?:st|nd|rd|th).century", span)]
        months += itertools.chain(*filter(None, found))
        months += [LAST_MONTH] * bool(found and re.search(r"\bsince (?:the )?$", text[:a].lower()))
    return (min(months), max(months)) if months else None


def names_by_time(text, spans, answers=()):
    """Names (runs of capitalised words) in the dated sentences of a text -> [(name, whether its sentence meets spans)].

    spans: months [(first, last)]. A dated sentence that tells one of `answers` at such a time puts its own time in
    place of `spans`: the gold's rather than the question's. A sentence has one time, from its first month to its last.
    """
    sentences, begin = [], 0  # (sentence, its time, its names)
    small, times = set(re.findall(r"\b[a-z]+\b", text)), _tagger().spans(text)
    for end in (m.start() for m in _END.finditer(text)):
        sentence, inside = text[begin:end], [(a - begin, b - begin) for a, b in times if begin <= a and b <= end]
        time, names, begin = months_in(sentence, inside), [], end
        for m in _NAME.finditer(sentence) if time else ():
            words, first = m[0].split(), not sentence[: m.start()].strip()
            while words and (STOP_WORDS.fullmatch(words[0].lower()) or (first and words[0].lower() in small)):
                del words[0]
            name = re.sub(r"(?<=[^\W\d_]{3})\.$", "", " ".join(words))
            sure = len(words) > 1 or not (first or _NOUN.match(sentence, m.end()))
            if len(name) > 2 and sure and not _meets((m.start() + 1, m.end()), inside):
                names.append(name)
        sentences += [(normalize(sentence), time, names)] if time else []
    told = [t for s, t, _ in sentences if any(f" {normalize(a)} " in f" {s} " for a in answers if a)]
    spans = [t for t in told if _meets(t, spans)] or spans or told
    return [(name, _meets(t, spans)) for _, t, names in sentences for name in names] if spans else []


def _fresh(pool, used, n=10**9):
    """The first n texts of `pool` that are no answer of `used`, nor of each other"""
    out = []
    for x in pool:
        if len(out) < n and normalize(x) and not any(same_answer(x, y) for y in (*used, *out)):
            out.append(x)
    return out


def negatives(example, kind="both", n=4, index=None, rng=0):
    """(remote, proximal): n negative answers in all, none an accepted one or its alias. kind: both, remote, proximal, none.

    remote: objects of the asked subject and relation at another time (an L3 spell that only shares an end month with
    the gold's is at another); official neg_answers; in prose without facts, names in sentences of another time.
    proximal: objects of other facts that share a month with the gold's; names in prose of that time; facts of `index`.
    `both`: n/2 each (odd n: one more remote). Too few: `both` fills up with the other kind; then those at hand are
    repeated; where there is none at all, the other kind stands in. Empty only when neither kind has any.
    rng: random.Random, or a seed: the same negatives whatever the order of the examples.
    """
    wants = {"both": [n - n // 2, n // 2], "remote": [n, 0], "proximal": [0, n], "none": [0, 0]}.get(kind)
    if wants is None or n < 1:
        raise UserError(f"{n} negatives of kind {kind!r}; expected 1 or more; both, remote, proximal or none")
    rng = rng if isinstance(rng, random.Random) else random.Random(f"{rng} {example.id}")
    time, answers, facts = example.time, example.answers, example.facts
    key, span = lambda f: (f.subject, f.relation), lambda f: (f.start, f.end)
    golds = [f for f in facts if f.object in answers and time and _meets(span(f), [time])]
    asked = key((golds or facts)[0]) if facts else (None, None)  # readers put the asked facts first
    own, spans = [f for f in facts if key(f) == asked], [span(f) for f in golds if key(f) == asked]
    spans = spans or [time] * bool(time)
    inner = time and (time if time[0] == time[1] else (time[0] + 1, time[1] - 1))  # L3: back to back is apart
    now = [f.object for f in own if not time or _meets(span(f), [inner])]
    remote = [x for x in (*example.remote, *(f.object for f in own)) if x not in now]
    proximal = [f.object for f in facts if key(f) != asked and _meets(span(f), spans)]
    if not re.search(rf" from {_MONTH} to {_MONTH}\.", example.context):  # prose
        known = [example.question, *_NAME.findall(example.question), *answers, *(f.object for f in facts)]
        known = [f" {k} " for k in map(normalize, known) if k]
        named = names_by_time(example.context, spans, () if own else answers)
        inside = lambda words: any(k in words or words in k for k in known)
        named = [(name, near) for name, near in named if not inside(f" {normalize(name)} ")]
        proximal += [name for name, near in named if near]
        remote += [name for name, near in named if not (own or near or (name, True) in named)]
    remote = _fresh(remote, answers)
    used = [*answers, *remote, *(f.object for f in own)]
    pools = [rng.sample(pool, len(pool)) for pool in (remote, _fresh(proximal, used))]
    if index:  # no more than needed: what stands in the context comes first
        others = (f.object for f in index.overlapping(spans, asked[1], rng) if key(f) != asked)
        pools[1] += _fresh(others, used + pools[1], n - len(pools[1]))
    for i in (0, 1):
        lack = min(wants[i] - len(pools[i]), len(pools[1 - i]) - wants[1 - i]) if kind == "both" else 0
        lack = max(lack, 0) if pools[i] else wants[i]
        wants[i], wants[1 - i] = wants[i] - lack, wants[1 - i] + lack
    return tuple((pool * want)[:want] for pool, want in zip(pools, wants, strict=True))


# ----------------------------------------------------------------------------------------------------------------------
# pretraining tasks: copying, comparing times, and finding the span that a gap points at

DATE_LEVELS = [
    (1, 1, 0),
    (1, 1, 4),
    (1, 2, 8),
    (2, 4, 8),
    (4, 16, 8),
]  # fewest dates, most dates, filler pieces between


LABELS = {"named": 2, "dates": 3, "facts": 3, "golds": 2}  # labels of a Task, and how many values they have
GAPS = "\x01\x02"  # stand for <extra_id_0> and <extra_id_1> in the text of a Task


def marked(text, **labels):
    """Text between private characters that tell Task.put its labels, so that templates can carry it along."""
    codes = [0xE000 + 8 * list(LABELS).index(name) + value for name, value in labels.items()]
    return "".join(map(chr, codes)) + text + "\ue0ff" * len(codes)


class Task:
    """One pretraining example in the making: source ids with four labels a piece, and what the decoder has to write.

    named: at the answers in the facts, 1 = the question names it, 0 = it does not. dates: at the last piece of a date,
    0/1/2 = before/at/after the time asked about. facts: at the full stop of a fact, 1 = it answers, 0 or 2 = it does
    not, by its side. golds: at the answers, 1 = right, 0 = wrong. No label: -100. sure: there is one right answer only.
    first: how many pieces of the target are the answer, where more follows it.
    """

    def __init__(self, tokenizer):
        self.tokenizer, self.ids, self.target, self.sure, self.first = tokenizer, [], [], True, 0
        for name in LABELS:
            setattr(self, name, [])

    def put_ids(self, ids):
        self.ids += ids
        for name in LABELS:
            getattr(self, name).extend([-100] * len(ids))

    def put(self, text):
        """Adds a text, with sentinels for GAPS and with the labels of its `marked` parts."""
        plain, spans, begun = [], [], []
        for c in text:
            code = ord(c) - 0xE000
            if not 0 <= code < 256:
                plain.append(c)
            elif code < 255:
                begun.append((code // 8, code % 8, len(plain)))
            else:
                spans.append((*begun.pop(), len(plain)))
        ids, offsets = self.tokenizer.encode_with_offsets("".join(plain))
        gaps, first = {self.tokenizer.sp.piece_to_id(f"<0x{ord(c):02}>"): k for k, c in enumerate(GAPS)}, len(self.ids)
        self.put_ids([self.tokenizer.sentinel(gaps[i]) if i in gaps else i for i in ids[:-1]])
        for label, value, start, end in spans:
            name = list(LABELS)[label]
            # of a character in several pieces, all but the last have an empty range
            inside = [first + i for i, (a, b) in enumerate(offsets[:-1]) if a < end and max(b, a + 1) > start]
            for i in inside[-1:] if name in ("dates", "facts") else inside:
                getattr(self, name)[i] = value


def copy_task(rng, names, tokenizer, n):
    """Write the same again: up to n random pieces, or a name."""
    task = Task(tokenizer)
    if rng.random() < 0.6:
        ids = [rng.randrange(tokenizer.size // 8, tokenizer.size) for _ in range(rng.randint(max(1, n // 2), n))]
    else:
        ids = tokenizer.pieces(
            names.draw(rng.choice(["person", "club", "employer", "party", "position"]), names.draw("country"))
        )
    task.put("copy:")
    task.put_ids(ids)
    task.target = ids
    return task


def near(rng, month):
    """Another month, as often close as far: the distance is uniform on a logarithmic scale, one in twenty is 0."""
    if rng.random() < 0.05:
        return month
    distance = int(math.exp(rng.uniform(0, math.log(12 * 150))))
    distance = 12 * max(1, distance // 12) if rng.random() < 0.25 else distance
    return max(600 * 12, min(OPEN_END, month + rng.choice((-1, 1)) * distance))


def date_task(rng, names, tokenizer, level):
    """Dates at varying distances from a first one: which of them are before it, the same, after it?"""
    few, many, filler = DATE_LEVELS[level]
    first, last = rng.choice(((1900, 2022), (1900, 2022), (1700, 1900), (1000, 1700), (600, 1000)))
    asked, task = 12 * rng.randint(first, last) + rng.randint(0, 11), Task(tokenizer)
    junk = lambda n: task.put_ids([rng.randrange(tokenizer.size // 8, tokenizer.size) for _ in range(n)])
    task.put(f"In {format_month(asked)},")
    junk(rng.randint(0, 1 + filler))
    task.put(f"{GAPS[0]}. context:")
    for _ in range(rng.randint(few, many)):
        month, form = near(rng, asked), rng.random()
        if filler and rng.random() < 0.7:
            junk(rng.randint(1, filler))
        if form < 0.7:
            text, order = format_month(month), (month > asked) - (month < asked)
        else:  # as prose has it; a year alone is compared with the year
            text = date_in_prose(month, years := form > 0.85)
            a, b = (month // 12, asked // 12) if years else (month, asked)
            order = (a > b) - (a < b)
        stop = "." if rng.random() < 0.3 else ""
        task.put(rng.choice(("from", "to", "in", "on")) + f" {marked(text, dates=order + 1)}{stop}")
    task.target = [tokenizer.sentinel(0)]
    return task


def match_task(rng, names, tokenizer, n):
    """Up to n names of one kind, and one of them again before or after: which of them are the same?"""
    relation = rng.choices(list(RELATIONS), [r[0] for r in RELATIONS.values()])[0]
    task, pool = Task(tokenizer), names.several(RELATIONS[relation][2], n)
    asked, word = rng.choice(pool), rng.choice(("after", "before"))
    task.put(
        f"{word.title()} {asked}, {GAPS[0]}. context:" if rng.random() < 0.5 else f"{GAPS[0]} {word} {asked}. context:"
    )
    for name in pool:
        text = marked(name, named=int(name == asked))
        if rng.random() < 0.5:
            text += rng.choice((" from", " to", " in", " on")) + f" {format_month(rng.randint(12 * 1000, OPEN_END))}"
        task.put(text + ".")
    task.target = [tokenizer.sentinel(0)]
    return task


def fact_task(rng, names, tokenizer, k, level, prose=False):
    """A statement with gaps, and up to k facts in any order that may fill them; l2: at a month, l3: after or before.

    As in T5's own pretraining more than one span is missing: the answer, and when it held. prose: the facts are told in
    a biography, among others; then there may be no answer, and the gaps stay empty.
    """
    asked = None
    while asked is None:
        relation = rng.choices(list(RELATIONS), [r[0] for r in RELATIONS.values()])[0]
        facts = facts_of(rng, names, relation, k)
        asked = (ask_prose if prose else ask)(rng, facts, level)
    question, golds, (t, _) = asked
    _, _, _, form, stem = RELATIONS[relation]
    tail = question[len(stem.format(s=facts[0].subject)) + 1 : -1]  # `in Mar, 1955`, `after Real Oso`
    word, name = tail.split(" ", 1)
    known = None if level == "l2" else next(f for f in facts if f.object == name)
    if known:
        t = known.end if word == "after" else known.start

    def mark(fact, part, text):
        right = fact.object in golds and fact.relation == relation
        if part == "object":
            return marked(text, golds=int(right), **({} if known is None else {"named": int(fact is known)}))
        if part == "stop":
            if fact.relation != relation and known is None and fact.start <= t <= fact.end:
                return text  # right by its time: another relation is for the last block to see
            return marked(text, facts=1 if right else 2 if (fact.end < t) == (word == "before") else 0)
        if fact is known or (known and (part == "start") != (word == "after")):
            return text
        month = fact.start if part == "start" else fact.end
        a, b = (month // 12, t // 12) if text.isdigit() else (month, t)
        return marked(text, dates=(a > b) - (a < b) + 1)

    task, past = Task(tokenizer), PROSE[relation][0].removesuffix(" {t}.")
    form = rng.choice((form, past)).format(s=facts[0].subject, p=facts[0].subject, o=GAPS[0])
    task.put(f"{word.title()} {name}, {form}, {GAPS[1]}." if rng.random() < 0.5 else f"{form} {tail}, {GAPS[1]}.")
    if prose:
        context = biography(rng, names, [facts, *other_groups(rng, names, facts)], mark)
    else:
        rng.shuffle(facts)
        context = " ".join(statement(f, mark) + mark(f, "stop", ".") for f in facts)
    task.put(f"context: {context}")
    answer, held = rng.choice(golds), ""
    for fact in facts:
        if fact.object == answer and prose:
            held = f"from {date_in_prose(fact.start, in_years(facts))}"
        elif fact.object == answer:
            held = f"from {format_month(fact.start)} to {format_month(fact.end)}"
    task.target = [tokenizer.sentinel(0), *tokenizer.pieces(answer), tokenizer.sentinel(1), *tokenizer.pieces(held)]
    task.first = task.target.index(tokenizer.sentinel(1)) + 1
    task.sure = len(golds) == 1
    return task


# ----------------------------------------------------------------------------------------------------------------------
# the bundled tokenizer, trained on generated text alone

HOUSEHOLD = (  # sentences about household events, so that TRAVELER's words are pieces too; parted by "|"
    "On {m} {d}, {y} at 2{h}:{h}5, {w} watched a film in the living room.|Did {w} drink juice in the kitchen on {y}-0{h}-{d}?"
    "|Who ate risotto in the kitchen last month?|How often did {w} read a book in the living room this year?|yes, no, nobody, nothing"
    "|When was the last time {w} stored a wine bottle in the kitchen?|Did {w} dance salsa in the living room some time ago?"
    "|Did {w} chat with a friend a long time ago, recently or just now?|Today is the {y}-0{h}-{d} 2{h}:1{h}. yesterday today this month"
    '|{{"Event Type": "watch film", "Subject": "{w}", "Location": "living room", "Timestamp": "{y}-0{h}-{d} 1{h}:3{h}"}}'
)


def tokenizer_text(n, seed):
    """Yields texts like those of `mini` (train), and household events; n of each kind."""
    rng = random.Random(seed)
    names = Names(rng, "train")
    for ex in mini("train", "mix", "mix", n, seed):
        yield f"question: {ex.question}"
        yield f"context: {ex.context}"
        slots = {"m": calendar.month_name[rng.randint(1, 12)], "d": rng.randint(10, 28), "h": rng.randint(1, 9)}
        yield rng.choice(HOUSEHOLD.split("|")).format(w=names.word(), y=rng.randint(1990, 2023), **slots)


def train_tokenizer(directory, pieces=2048, n=30000, seed=0):
    """Trains the bundled SentencePiece model: digits apart, bytes for what is rare, and any text comes back unchanged.

    Pieces such as "▁1" let the first digit of a year differ from the others. `pieces` counts the 256 bytes too.
    """
    path, out = Path(directory) / "spiece.model", io.BytesIO()
    if path.exists():  # weights trained with it would be worth nothing
        raise UserError(f"{path} is there already; give another folder: a model works with its own tokenizer alone")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=tokenizer_text(n, seed),
        model_writer=out,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        split_digits=True,
        user_defined_symbols=[f"▁{digit}" for digit in range(10)],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.9999,
        max_sentence_length=10**6,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    write_atomic(path, out.getvalue())
    Tokenizer(directory).save(directory)


# ----------------------------------------------------------------------------------------------------------------------
# the command that looks at data

TABLE_1 = {  # the paper's numbers of questions: train, dev, test
    "tempreason-l2": (16017, 5521, 5397),
    "tempreason-l3": (13014, 4437, 4426),
    "timeqa-easy": (14308, 3021, 2997),
    "timeqa-hard": (14681, 3087, 3078),
}
EXAMPLES = """examples:
  python data.py --show 5 --level l3 --setting obqa
      five generated questions, to be answered from prose
  python data.py --stats --data-dir official
      what the official files in ./official hold, and mini beside them
  python data.py --train-tokenizer my-t5
      a tokenizer for a model of your own, from generated text
"""


def statistics(examples):
    """A row of `--stats`. facts and words: means of a row; years: those of the times that questions and golds name."""
    size = lambda ex: (ex.question, len(ex.facts), len(ex.context.split()), len(ex.answers), "" in ex.answers, ex.time)
    questions, facts, words, answers, unanswerable, times = zip(*map(size, examples), strict=True)
    years = [month // 12 for time in times for month in time or () if 0 < month < LAST_MONTH]
    return {
        "rows": len(questions),
        "distinct": len(set(questions)),
        "facts": f"{np.mean(facts):.1f}" if any(facts) else "-",
        "words": f"{np.mean(words):.0f}",
        "most words": max(words),
        "several answers": f"{100 * np.mean([n > 1 for n in answers]):.1f} %",
        "unanswerable": f"{100 * np.mean(unanswerable):.1f} %",
        "years": f"{min(years)} to {max(years)}" if years else "-",
    }


def stats(data_dir=None, n=1000, seed=0):
    """Rows of a table like the paper's Table 1: n questions of each part of mini, and every official file at hand."""
    find_data(data_dir, "tempreason-l2", "train", fetch=False)  # a folder that is not there is found out at once
    rows = []
    for name, split in itertools.product(("mini-l2", "mini-l3", *_FILES), ("train", "dev", "test")):
        path = None if name[:4] == "mini" else find_data(data_dir, name, split, fetch=False)
        for setting in ("obqa",) if name[:6] == "timeqa" else ("reason", "obqa"):
            row = {"data": name, "setting": setting, "split": split}
            if name[:4] == "mini":
                rows.append(row | {"Table 1": "-"} | statistics(mini(split, name[5:], setting, n, seed)))
            elif path:
                examples = read_timeqa(path) if name[:6] == "timeqa" else read_tempreason(path, setting)
                paper = TABLE_1[name][("train", "dev", "test").index(split)]
                rows.append(row | {"Table 1": paper} | statistics(examples))
    return rows


def parse_args(argv=None):
    about = "Look at the data: three generated questions (no flag), more of them, or\nhow large each data set is."
    p = argparse.ArgumentParser(description=about, epilog=EXAMPLES, formatter_class=Help)
    whole = functools.partial(number, int)
    add = p.add_argument_group("what to do").add_argument
    add("--show", type=whole(1, 10**6), metavar="N", default=3, help="print N questions of mini")
    add("--stats", action="store_true", help="count official files, as the paper's Table 1 does, and mini; no download")
    add("--train-tokenizer", metavar="DIR", help="train one on generated text, and write spiece.model there")
    add = p.add_argument_group("which data").add_argument
    add("--split", choices=("train", "dev", "test"), default="train", help="of --show")
    add("--level", choices=("l2", "l3", "mix"), default="mix", help="of --show: a month, or before and after an answer")
    add("--setting", choices=("reason", "obqa", "mix"), default="mix", help="of --show: facts, prose, or both")
    add("--data-dir", metavar="DIR", help="of --stats: folder of the official files (default: the download cache)")
    add("--seed", type=whole(0, 2**31), default=0, help="of the questions, or of the tokenizer's text")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    if args.train_tokenizer:
        train_tokenizer(args.train_tokenizer, seed=args.seed)
        print(f"{Path(args.train_tokenizer) / 'spiece.model'} is written", file=sys.stderr)
    elif args.stats:
        rows = stats(args.data_dir, seed=args.seed)
        if all(row["data"][:4] == "mini" for row in rows):
            place = args.data_dir or f"{cache_dir()}; name their folder with --data-dir"
            print(f"no official files in {place}", file=sys.stderr)
        print(table(rows))
    else:
        for ex in mini(args.split, args.level, args.setting, args.show, args.seed):
            answers = " | ".join(answer or "(no answer)" for answer in ex.answers)
            print(f"{ex.id}\n  question: {ex.question}\n  context:  {ex.context}\n  answers:  {answers}\n")


if __name__ == "__main__":
    run(main)
