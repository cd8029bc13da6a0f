"""Scores for time-sensitive question answering: exact match, F1, bootstrap intervals, a rule without a model, tables.

    python evaluate.py --ckpt runs/sft runs/ppo

What is here, top to bottom: EM and F1 after SQuAD normalisation, the bootstrap, the interval rule that stands beside
every model on ReasonQA, benches and predictions files, the command line. A model is needed only inside `main`.

References
- EM and F1: Rajpurkar et al. 2016 (SQuAD), https://arxiv.org/abs/1606.05250
- bootstrap: Efron and Tibshirani 1993, chapters 13 and 16
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import data
from data import MONTHS, UserError, normalize

BENCHES = ("mini", "tempreason-l2", "tempreason-l3", "timeqa-easy", "timeqa-hard")


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

    It says how much the mean moves with the choice of questions; it knows nothing of other training seeds. When all the
    scores are equal, the interval has no width: with few questions do not read that as certainty.
    """
    lo, hi = np.percentile(resampled_means(scores, n_boot, seed), [2.5, 97.5])
    return float(lo), float(hi)


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
    # the named object is looked up among the facts: names themselves may hold "before" or "after"
    named = [(f, w) for f in example.facts for w in ("before", "after") if question.endswith(f" {w} {f.object}")]
    if not named:
        return ""
    x, word = max(named, key=lambda fw: len(fw[0].object))
    others = [f for f in example.facts if f.object != x.object]
    if word == "after":
        later = [f for f in others if f.start >= x.end] or [f for f in others if f.start > x.start]
        return min(later, key=lambda f: (f.start, f.start == f.end, f.end)).object if later else ""
    earlier = [f for f in others if f.end <= x.start] or [f for f in others if f.start < x.start]
    return max(earlier, key=lambda f: (f.start, f.end)).object if earlier else ""


# ----------------------------------------------------------------------------------------------------------------------
# benches, predictions files, tables


def load_bench(bench, setting="reason", split="test", data_dir=None, n=None, seed=0):
    """Examples of a bench: n of them drawn by `seed` (in file order), or all when n is None (mini: 500)."""
    if bench == "mini":
        return list(data.mini(split, "mix", setting, n or 500, seed))
    if bench.startswith("tempreason") and setting == "mix":
        raise UserError(f"--setting mix exists only for mini: give --setting reason or obqa with --bench {bench}")
    path = data.find_data(data_dir, bench, split)
    examples = list(data.read_timeqa(path) if bench.startswith("timeqa") else data.read_tempreason(path, setting))
    if not examples:
        raise UserError(f"{path}: no questions in this file")
    if n is not None and n < len(examples):
        examples = [examples[i] for i in sorted(random.Random(seed).sample(range(len(examples)), n))]
    return examples


def first_few(ids):
    return ", ".join(json.dumps(i)[:80] for i in ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def read_predictions(path, ids):
    """Predictions of JSON lines `{"id": ..., "prediction": ...}` in the order of `ids`; other keys are ignored.

    UserError for a file or line that cannot be read, and for ids that are missing, doubled or not in the bench.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: cannot be read as UTF-8 JSON lines ({e})") from e
    found, doubled = {}, []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise UserError(f"{path}, line {number}: not valid JSON ({e}), expected one object a line") from e
        if not isinstance(row, dict):
            raise UserError(
                f'{path}, line {number}: expected an object {{"id": ..., "prediction": ...}}, got {row!r:.60}'
            )
        for key in ("id", "prediction"):
            if not isinstance(row.get(key), str):
                got = f"got {row[key]!r:.60}" if key in row else "it is missing"
                raise UserError(f'{path}, line {number}: "{key}" must be a string, {got}')
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


def score_rows(bench, examples, answers, v1=False):
    """Table rows of one bench, in percent; answers: {system: [prediction]}.

    Later systems get their difference to the first; `rule` and `no answer` do not, being bars to clear and no rivals.
    """
    em = {k: [exact_match(p, ex.answers) for p, ex in zip(ps, examples, strict=True)] for k, ps in answers.items()}
    rivals = [k for k in answers if k not in ("rule", "no answer")]
    rows = []
    for system, predictions in answers.items():
        lo, hi = bootstrap_interval(em[system])
        row = {"system": system, "bench": bench, "n": len(examples)}
        row |= {"EM": f"{100 * np.mean(em[system]):.1f}", "95 %": f"{100 * lo:.1f} to {100 * hi:.1f}"}
        # TimeQA is reported in both conventions: they differ by the share of right abstentions
        for flag, name in (False, "F1"), (True, "F1 v1.1"):
            if flag == v1 or bench.startswith("timeqa"):
                scores = [f1(p, ex.answers, flag) for p, ex in zip(predictions, examples, strict=True)]
                row[name] = f"{100 * np.mean(scores):.1f}"
        if system in rivals[1:]:
            diff, lo, hi, p = paired_bootstrap(em[system], em[rivals[0]])
            row[f"EM - {rivals[0]}"] = f"{100 * diff:+.1f} ({100 * lo:+.1f} to {100 * hi:+.1f})"
            row["p"] = "< 0.001" if p < 0.001 else f"{p:.3f}"
        rows.append(row)
    return rows


def table(rows):
    """Aligned Markdown table of dicts; its columns are the keys in order of appearance, "-" where a row lacks one."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    padded = []  # by column
    for column in columns:
        cells = [column, ""] + [str(row.get(column, "-")).replace("|", "\\|") for row in rows]
        width, left = max(3, *map(len, cells)), column in ("system", "bench")
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell in cells]
        cells[1] = "-" * width if left else "-" * (width - 1) + ":"
        padded.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in zip(*padded, strict=True))


# ----------------------------------------------------------------------------------------------------------------------
# command line

EXAMPLES = """examples:
  python evaluate.py --ckpt runs/sft runs/ppo
      two runs on 500 generated questions, with the difference between them
  python evaluate.py --bench tempreason-l2 tempreason-l3 --data-dir official --ckpt runs/ppo --beams 4
      the official test files in ./official, beam search
  python evaluate.py --bench timeqa-hard --predictions mine.jsonl
      the score of anybody's predictions; no model is loaded
"""


def positive(text):
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def make_directory(path):
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out {path}: cannot make this folder ({e.strerror})") from e


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description="Score checkpoints or a predictions file; print one table.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    bench_help = f"one or several of {', '.join(BENCHES)} (default: mini)"
    add("--bench", nargs="+", choices=BENCHES, metavar="BENCH", default=["mini"], help=bench_help)
    add("--ckpt", nargs="+", metavar="DIR", help="run directories or model names (default: runs/sft, else `tiny`)")
    add(
        "--setting",
        choices=("reason", "obqa", "mix"),
        default="reason",
        help="facts or free text; no meaning for TimeQA; mix: mini only (default: %(default)s)",
    )
    add("--split", choices=("test", "dev", "train"), default="test", help="which questions (default: %(default)s)")
    add("--data-dir", metavar="DIR", help="folder of the official files (default: the download cache)")
    add("--n", type=positive, help="number of questions, drawn by --seed (default: all; mini: 500)")
    add("--seed", type=int, default=0, help="of mini's questions and of the draw of --n (default: %(default)s)")
    add("--beams", type=positive, default=1, help="beams of the search, 1 = greedy (default: %(default)s)")
    add("--batch-size", type=positive, default=32, help="questions at a time (default: %(default)s)")
    add("--device", help="cpu, cuda or cuda:1 (default: cuda if there is one, else cpu)")
    add("--predictions", metavar="FILE", help='also score JSON lines {"id": ..., "prediction": ...}; one --bench only')
    add("--squad-v1", action="store_true", help="F1 of a right empty answer is 0, as in SQuAD 1.1 (default: 1)")
    add("--out", metavar="DIR", help="folder for predictions.jsonl (default: each run's own directory)")
    return p.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    benches, ckpts = list(dict.fromkeys(args.bench)), list(dict.fromkeys(args.ckpt or []))
    if args.predictions and len(benches) > 1:
        raise UserError("--predictions belongs to one bench: give one --bench")
    if not ckpts and not args.predictions:
        ckpts = ["runs/sft" if Path("runs/sft").is_dir() else "tiny"]
        found = "using runs/sft" if ckpts == ["runs/sft"] else "no runs/sft either, using the bundled model"
        print(f"no --ckpt: {found}", file=sys.stderr)  # stdout is for the table

    examples = {b: load_bench(b, args.setting, args.split, args.data_dir, args.n, args.seed) for b in benches}
    answers = {b: {} for b in benches}  # bench -> system -> predictions
    given = args.predictions and read_predictions(args.predictions, [ex.id for ex in examples[benches[0]]])

    for ckpt in ckpts:
        import tsqa  # here, because tsqa imports this file

        out = Path(args.out) if args.out else Path(ckpt)
        if args.out and len(ckpts) > 1:
            out /= re.sub(r"\W+", "-", ckpt).strip("-")
        if not args.out and not (out / "args.json").is_file():
            out = None  # somebody else's model directory, or a name: not ours to write into
            print(f"{ckpt} is not a run directory: give --out to keep its predictions", file=sys.stderr)
        elif args.out:
            make_directory(out)  # before the long part: a folder that cannot be made must not cost an hour of decoding
        model, tokenizer, tagger, _ = tsqa.load_run(ckpt, args.device)
        for b in benches:
            answers[b][ckpt] = tsqa.predict(
                model, tokenizer, tagger, examples[b], num_beams=args.beams, batch_size=args.batch_size
            )
            if out:
                name = "predictions.jsonl" if len(benches) == 1 else f"predictions-{b}.jsonl"
                save_predictions(out / name, examples[b], answers[b][ckpt], args.squad_v1)

    rows = []
    for b in benches:
        if args.predictions:
            answers[b]["predictions"] = given
        if args.setting == "reason" and not b.startswith("timeqa"):
            answers[b]["rule"] = [rule_answer(ex) for ex in examples[b]]
        if any("" in ex.answers for ex in examples[b]):
            answers[b]["no answer"] = [""] * len(examples[b])  # what saying nothing scores
        rows += score_rows(b, examples[b], answers[b], args.squad_v1)
    print(table(rows))


if __name__ == "__main__":
    data.run(main)
