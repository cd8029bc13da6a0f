"""Rewards of stage 2: the paper's triplet reward, equations (7) and (8), and the exact-match reward of TempT5.

What is here: the two equations, the encoder that turns answers into vectors, both rewards, the measurement. The paper
names no encoder, no margin and no way to join the negatives; the table that this script prints chose ours.
"""

import argparse
import copy
import itertools
import random
import re

import torch
import torch.nn.functional as F

import data
from data import EOS, batches, number, pad, table
from evaluate import BENCHES, exact_match, load_bench, positive
from tsqa import fallback, in_colour, load_run

MARGIN = 0.75  # the largest one tried at which 99 % of the golds have R >= 1.5, on mini and on TempReason
LOWEST = -2.0  # what an answer scores that was cut off before EOS


def triplet(gt, pred, neg, margin, how="mean"):
    """T of equation (7): gt (..., G, D), pred (..., D), neg (..., N, D) -> (...); one gt or one neg may come as (..., D).

    d(gt, p) is the smallest over the G accepted answers. The N negatives: mean (ours; the paper leaves it open), `max`
    (the hardest) or `min`. Rows of NaN are padding. Without negatives T = d(gt, p).
    """
    gt, neg = (x.unsqueeze(-2) if x.ndim == pred.ndim else x for x in (gt, neg))
    near = (gt - pred.unsqueeze(-2)).norm(dim=-1).masked_fill(gt.isnan().any(-1), torch.inf).amin(-1)  # (...)
    far = (neg - pred.unsqueeze(-2)).norm(dim=-1)  # (..., N)
    if far.shape[-1] == 0:
        return near
    T = (near.unsqueeze(-1) - far + margin).clamp(min=0)  # (..., N), NaN stays NaN
    if how == "mean":
        T = T.nanmean(-1)
    else:
        T = T.nan_to_num(nan=-torch.inf).amax(-1) if how == "max" else T.nan_to_num(nan=torch.inf).amin(-1)
    return torch.where(far.isnan().all(-1), near, T)


def reward(T):
    """R of equation (8), alpha 4, beta 2, delta 1e-6: falls from 2 at T = 0 through 0 at T = ln 3 towards -2."""
    return 4 * (2 / (1 + torch.exp(T) + 1e-6)) - 2


class AnswerEncoder:
    """Texts -> unit vectors (len, D), by the frozen encoder of a T5: distances lie in [0, 2]. Cached per text.

    The mean over the pieces of an answer without EOS (the empty answer has nothing else), minus the mean vector of
    `center`, a list of training answers (None: minus nothing), scaled to length 1. A model that can train is copied.
    """

    def __init__(self, model, tokenizer, center=None, batch_size=256, cache_size=200_000):
        if any(p.requires_grad for p in model.parameters()):
            model = copy.deepcopy(model).requires_grad_(False)
        self.model, self.tokenizer, self.batch_size, self.cache_size = model.eval(), tokenizer, batch_size, cache_size
        self.cache = {}  # text -> (D,)
        self.mean = self.pooled(list(center)).mean(0) if center else 0.0

    @torch.no_grad()
    def pooled(self, texts):
        """Mean over the pieces of each text: (len, D) float32"""
        device, rows = self.model.shared.weight.device, [self.tokenizer.encode(text, 64) for text in texts]
        out = torch.empty(len(rows), self.model.config.d_model, device=device)
        for index in batches([len(row) for row in rows], self.batch_size, shuffle=False):
            ids, mask = (x.to(device) for x in pad([rows[i] for i in index]))
            with torch.autocast(device.type, enabled=False):
                hidden = self.model.encode(ids, mask, torch.zeros_like(ids))  # answers hold no time marks
            keep = mask * ((ids != EOS) | (mask.sum(1, keepdim=True) == 1))  # (B, S)
            out[index] = (hidden * keep[:, :, None]).sum(1) / keep.sum(1, keepdim=True)
        return out

    def __call__(self, texts):
        if len(self.cache) + len(texts) > self.cache_size:  # rare, and what is needed comes again
            self.cache.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in self.cache]:
            self.cache.update(zip(new, F.normalize(self.pooled(new) - self.mean, dim=-1), strict=True))
        return torch.stack([self.cache[text] for text in texts])

    def ragged(self, rows):
        """Lists of texts -> (B, N, D), filled up with NaN"""
        kept = pad([[1] * len(row) for row in rows])[1].bool().to(self.model.shared.weight.device)  # (B, N)
        out = torch.full((*kept.shape, self.model.config.d_model), torch.nan, device=kept.device)
        if kept.any():
            out[kept] = self([text for row in rows for text in row])
        return out


class TripletReward:
    """(predictions, golds, negatives) -> rewards (B,), above -2 up to 2; golds and negatives are lists of texts a row."""

    def __init__(self, encoder, margin=MARGIN, how="mean"):
        self.encoder, self.margin, self.how = encoder, margin, how

    def __call__(self, predictions, golds, negatives, ended=None):
        gt, neg = self.encoder.ragged(golds), self.encoder.ragged(negatives)
        return cut_off(reward(triplet(gt, self.encoder(predictions), neg, self.margin, self.how)), ended)


def em_reward(predictions, golds, negatives, ended=None):
    """The reward of TempT5, after normalisation: 1 for a gold, -1 for a negative, -2 for neither -> (B,)"""
    rows = zip(predictions, golds, negatives, strict=True)
    R = [1.0 if exact_match(p, g) else -1.0 if n and exact_match(p, n) else LOWEST for p, g, n in rows]
    return cut_off(torch.tensor(R), ended)


def cut_off(R, ended):
    """ended: a bool a row, False where the answer was cut off before EOS"""
    return R if ended is None else R.masked_fill(~torch.as_tensor(ended, dtype=torch.bool, device=R.device), LOWEST)


# ----------------------------------------------------------------------------------------------------------------------
# measurement


def alias(text):
    """Another spelling of a name, or None: University of X <-> X University, F.C. <-> FC, FC X -> X F.C."""
    forms = {r"(?:the )?University of ([^,]+)": r"\1 University", r"(.+) University": r"the University of \1"}
    forms |= {r"(.+) F\.C\.": r"\1 FC", r"FC (.+)|(.+) FC": r"\1\2 F.C."}
    return next((m.expand(new) for old, new in forms.items() if (m := re.fullmatch(old, text))), None)


def cases(examples, n, seed=0):
    """Per question (golds, n negatives, {kind: an answer to be scored or None}); `unseen`: remote, but not among the n."""
    rng, index, rows = random.Random(seed), data.FactIndex(examples), []
    for ex in examples:
        remote, proximal = data.negatives(ex, "both", n, index, seed)
        unseen = [x for x in data.negatives(ex, "remote", 50, None, seed)[0] if x not in remote + proximal]
        gold, other = rng.choice(ex.answers), rng.choice(rng.choice(examples).answers)
        kinds = {"gold": [gold], "alias": [alias(gold)], "remote": remote, "unseen": unseen, "proximal": proximal}
        wrong = {"unrelated": other, "empty": ""}
        kinds |= {k: [] if any(data.same_answer(x, a) for a in ex.answers) else [x] for k, x in wrong.items()}
        rows.append((ex.answers, remote + proximal, {k: texts[0] if texts else None for k, texts in kinds.items()}))
    return rows


def measure(score, rows):
    """A row of the table: mean R by kind, and how far golds and aliases are from remote answers."""
    R = {kind: torch.full((len(rows),), torch.nan) for kind in rows[0][2]}
    for kind, r in R.items():
        if at := [i for i, row in enumerate(rows) if row[2][kind] is not None]:
            r[at] = score(*zip(*((rows[i][2][kind], *rows[i][:2]) for i in at), strict=True)).cpu()
    gold, remote, both = R["gold"], R["remote"], ~(R["alias"] + R["remote"]).isnan()
    pairs = gold[:, None] - remote[~remote.isnan()]  # all of them: AUC
    return {kind: f"{r.nanmean():.2f}" for kind, r in R.items()} | {
        "gold >= 1.5": f"{100 * (gold >= 1.5).float().mean():.1f} %",
        "AUC gold, remote": f"{((pairs > 0).float() + (pairs == 0) / 2).mean():.3f}",
        "alias > remote": f"{100 * (R['alias'] > remote)[both].float().mean():.1f} % of {both.sum()}",
    }


def show(example, remote, proximal, score, colour=False):
    """Question, context, answers with their rewards: golds red, remote blue, proximal orange, as in the paper's Table 7."""
    kinds, negs = [("gold", example.answers, 31), ("remote", remote, 34), ("proximal", proximal, 33)], remote + proximal
    lines = [example.question, example.context]
    R = lambda x: score([x], [example.answers], [negs]).item()
    lines += [f"  {k:8} {R(x):5.2f}  {x or '(no answer)'}" for k, texts, _ in kinds for x in dict.fromkeys(texts)]
    codes = {x: code for _, texts, code in kinds for x in texts if x}
    longest_first = "|".join(map(re.escape, sorted(codes, key=len, reverse=True)))
    paint = lambda m: f"\033[{codes[m[0]]}m{m[0]}\033[0m"
    return re.sub(longest_first, paint, "\n".join(lines)) if colour and codes else "\n".join(lines)


EXAMPLES = """examples:
  python reward.py
      how far apart right and wrong answers are, on mini
  python reward.py --data tempreason-l2 --data-dir official
      the same on the official training file in ./official
  python reward.py --show 3 --setting obqa
      negatives of three questions, coloured by kind
"""


def main(argv=None):
    about = "Measure the triplet reward, or look at negative answers."
    p = argparse.ArgumentParser(description=about, epilog=EXAMPLES, formatter_class=data.Help)
    names = [name for name in BENCHES if name != "traveler"]
    add = p.add_argument_group("data").add_argument
    add("--data", choices=names, default="mini", metavar="NAME", help=", ".join(names))
    add("--setting", choices=("reason", "obqa", "mix"), help="facts or free text (default: mix for mini, else reason)")
    add("--split", choices=("train", "dev", "test"), default="train", help="of the data")
    add("--data-dir", help="folder of the official files (default: the download cache)")
    add("--n", type=positive, metavar="N", default=600, help="questions")
    add("--seed", type=number(int, 0, 2**31), metavar="N", default=0, help="of questions and negatives")
    add = p.add_argument_group("reward").add_argument
    add("--model", help="whose encoder embeds the answers (default: runs/sft, if there, else tiny)")
    add("--device", help="cpu, cuda or cuda:1 (default: cuda, if any, else cpu)")
    add("--negatives", type=positive, metavar="N", default=4, help="per question")
    add("--margins", type=number(float, 0, 1000), nargs="+", metavar="X", default=[0.25, 0.5, 0.75, 1.0], help="to try")
    add = p.add_argument_group("in place of the measurement").add_argument
    add("--show", type=positive, metavar="N", help="print N questions with their negatives (no colours: NO_COLOR=1)")
    a = p.parse_args(argv)
    setting = a.setting or ("mix" if a.data.startswith("mini") else "reason")
    name = a.model or fallback()
    examples = load_bench(a.data, setting, a.split, a.data_dir, a.n, a.seed)
    model, tokenizer, _, _ = load_run(name, a.device)
    centers = {"yes": [x for ex in examples for x in ex.answers], "no": None}
    encoders = {centred: AnswerEncoder(model, tokenizer, center) for centred, center in centers.items()}
    if a.show:
        colour, index = in_colour(), data.FactIndex(examples)
        for ex in examples[: a.show]:
            found = data.negatives(ex, "both", a.negatives, index, a.seed)
            print(show(ex, *found, TripletReward(encoders["yes"]), colour), end="\n\n")
        return
    rows = cases(examples, a.negatives, a.seed)
    print(f"R of {len(rows)} questions of {a.data} ({setting}, {a.split}); answers embedded by {name}\n")
    out = []
    for c, how, m in itertools.product(encoders, ("mean", "max", "min"), a.margins):
        score = TripletReward(encoders[c], m, how)
        out.append({"centred": c, "over N": how, "margin": m} | measure(score, rows))
    print(table(out))


if __name__ == "__main__":
    data.run(main)
