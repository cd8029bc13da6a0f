"""The paper's Tables 3, 4 and 5 with the tiny model, and the ablations of window and tagger beside them.

    python benchmarks/tables.py                                              # on generated biographies (mini, obqa)
    python benchmarks/tables.py --data tempreason-l2 tempreason-l3 --setting obqa --data-dir DIR

Every row is a run of tsqa.py or ppo.py, with the commands that the README names, once for each seed; on real rows stage
1 starts from the same run on mini. A run that is finished is not made again, so an interrupted call goes on where it
stopped. Intervals: 95 % bootstrap over the test questions of the mean over seeds, beside the range over the seeds.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import tsqa
from data import UserError, run, table, write_atomic
from evaluate import bootstrap_interval, exact_match, f1, load_bench, versus

RUNS = {  # name: (script, the run it starts from, flags)
    "T5-SFT": ("tsqa.py", None, "--no-time"),
    "window 0": ("tsqa.py", None, "--window 0"),
    "window 2": ("tsqa.py", None, "--window 2"),
    "window 5": ("tsqa.py", None, "--window 5"),
    "TIAE": ("tsqa.py", None, "--window 10"),
    "TIAE, ner": ("tsqa.py", None, "--window 10 --tagger ner"),
    "GCRL": ("ppo.py", "T5-SFT", ""),
    "TIAE and GCRL": ("ppo.py", "TIAE", ""),
    "EM-RL": ("ppo.py", "T5-SFT", "--reward em"),
    "GCRL, remote": ("ppo.py", "T5-SFT", "--negatives remote"),
    "GCRL, proximal": ("ppo.py", "T5-SFT", "--negatives proximal"),
}
TABLES = {  # title: rows, each with EM and F1 of the paper (T5-base, all of TempReason L2 OBQA), where it has them
    "Table 3: the two parts": {
        "T5-SFT": (14.8, 35.2),
        "TIAE": (18.3, 37.7),
        "GCRL": (19.2, 38.9),
        "TIAE and GCRL": (19.3, 39.1),
    },
    "Table 4: reward and negatives": {
        "T5-SFT": (14.8, 35.2),
        "EM-RL": (16.7, 37.4),
        "GCRL, remote": (19.0, 38.7),
        "GCRL, proximal": (18.9, 38.6),
        "GCRL": (19.2, 38.9),
    },
    "Table 5: TempT5 (EM-RL) and ours": {"EM-RL": (15.4, 36.3), "TIAE and GCRL": (19.3, 39.1)},
    "Window of the marks": {"T5-SFT": None, "window 0": None, "window 2": None, "window 5": None, "TIAE": None},
    "Tagger": {"TIAE": None, "TIAE, ner": None},
}


def make(name, data, seed, args):
    """The run directory of a row, made if it is not there yet."""
    script, parent, flags = RUNS[name]
    out = args.out / data / name.replace(", ", "-").replace(" ", "-") / str(seed)
    if (out / "finished").is_file():
        return out
    command = [sys.executable, ROOT / script, "--data", data, "--seed", seed, "--out", out, *flags.split()]
    if data != "mini":
        command += ["--setting", args.setting, "--data-dir", args.data_dir]
    if parent:
        command += ["--ckpt", make(parent, data, seed, args), *args.ppo.split()]
    else:
        command += ["--stage", "sft"]
        command += (
            args.sft.split() if data == "mini" else ["--model", make(name, "mini", seed, args), *args.real.split()]
        )
    command += ["--resume"] if (out / "trainer.pt").is_file() else []
    print(" ".join(map(str, command[1:])), flush=True)
    if code := subprocess.run(list(map(str, command)), check=False).returncode:
        raise UserError(f"the run above ended with status {code}; mend what it says, then give the same command again")
    (out / "finished").touch()
    return out


def scores_of(name, data, seed, args):
    """(EM, F1) of every test question, in [0, 1]: two lists, kept beside the run."""
    out = make(name, data, seed, args)
    path = out / f"scores-{args.setting}-{args.n}.json"
    if not path.is_file():
        model, tokenizer, tagger, _ = tsqa.load_run(out)
        test = load_bench(data, args.setting, "test", args.data_dir, args.n if data == "mini" else None)
        answers = list(zip(tsqa.predict(model, tokenizer, tagger, test), (ex.answers for ex in test), strict=True))
        write_atomic(path, json.dumps([[exact_match(*a) for a in answers], [f1(*a) for a in answers]]))
    return json.loads(path.read_text())


def show(title, rows, data, args):
    """One table: the mean over the seeds, how far it moves with the questions, with the seeds, and from the first row."""
    shown, first = [], None
    for name, paper in rows.items():
        em, f = np.array([scores_of(name, data, seed, args) for seed in args.seeds]).transpose(
            1, 0, 2
        )  # (seeds, n) each
        lo, hi = bootstrap_interval(em.mean(0))
        row = {"system": name, "n": em.shape[1], "seeds": len(em), "EM": f"{100 * em.mean():.1f}"}
        row |= {
            "95 %": f"{100 * lo:.1f} to {100 * hi:.1f}",
            "over seeds": f"{100 * em.mean(1).min():.1f} to {100 * em.mean(1).max():.1f}",
        }
        row |= {"F1": f"{100 * f.mean():.1f}"} | ({"paper EM": paper[0], "paper F1": paper[1]} if paper else {})
        first = em.mean(0) if first is None else first
        shown.append(row | (versus("EM", em.mean(0), first, next(iter(rows))) if shown else {}))
    print(f"\n### {title}: {data}, {args.setting}\n\n{table(shown)}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", nargs="+", default=["mini"], help="mini, tempreason-l2, tempreason-l3 (default: mini)")
    p.add_argument(
        "--setting",
        default="obqa",
        choices=("reason", "obqa"),
        help="of the test questions, on real rows of training too (default: obqa)",
    )
    p.add_argument("--data-dir", help="folder of the official files")
    p.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    p.add_argument("--n", type=int, default=1000, help="test questions of mini (default: 1000)")
    p.add_argument(
        "--tables",
        nargs="+",
        type=int,
        default=[1, 2, 3, 4, 5],
        metavar="K",
        help="which: 1 the paper's Table 3, 2 Table 4, 3 Table 5, 4 windows, 5 taggers (default: all)",
    )
    p.add_argument("--sft", default="", help="more flags of stage 1 on mini, in one string")
    p.add_argument(
        "--real", default="--epochs 3 --warmup 5", help="flags of stage 1 on real rows (default: %(default)s)"
    )
    p.add_argument("--ppo", default="", help="more flags of stage 2, in one string")
    p.add_argument("--out", type=Path, default=Path("runs/tables"), help="(default: runs/tables)")
    args = p.parse_args()
    for data in args.data:
        for k in args.tables:
            show(*list(TABLES.items())[k - 1], data, args)


if __name__ == "__main__":
    run(main)
