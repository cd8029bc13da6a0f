"""Stage 2: granular contrastive reinforcement learning (section 3.2 of the paper): PPO on a fine-tuned T5.

The model answers training questions by sampling; each answer is scored as a whole text by the triplet reward (7)(8), or by
the EM reward; PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347) raises the probability of the better ones and
stays near the fine-tuned model by a KL penalty with an adaptive coefficient (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593).
What is not here: a trainer class, a replay buffer, layers shared with the reference, top-k or top-p.

One index for everything: an answer y of T pieces is stored without the start token, EOS included. The decoder reads
shift_right(y), so the logits at position t score y[t]; log-probability, value, KL, reward, advantage and mask are all (B, T).
Dropout is off throughout: model.eval() from the first line to the last.
"""

import argparse
import copy
import functools
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from data import EOS, PASSAGES, UNK, FactIndex, Help, TimeTagger, UserError, negatives, number, run
from evaluate import BENCHES, GENERATED, exact_match, load_bench, normalize
from reward import MARGIN, AnswerEncoder, TripletReward, em_reward
from tsqa import (
    add_up,
    all_reduce,
    autocast,
    begin_run,
    check_loss,
    collate,
    compiled,
    encode_sources,
    evaluate_dev,
    flags_of_run,
    gather,
    interruptible,
    load_run,
    log_metrics,
    open_run,
    parameter_groups,
    processes,
    ranks,
    restore,
    save_trainer,
    schedule,
    share,
    shift_right,
    together,
    weights_file,
    write_card,
)

KINDS = ("gold", "remote", "proximal", "other", "empty", "truncated")


# ----------------------------------------------------------------------------------------------------------------------
# PPO, in pure functions of (B, T) tensors


def action_mask(ids):
    """ids (B, T) -> (B, T) of bool: True up to the first EOS, the EOS itself included; a row without one is all True.

    Not `ids != 0`: 0 is the pad, but what counts is whether the answer had ended, whatever stands there.
    """
    end = (ids == EOS).long()
    return end.cumsum(1) - end == 0


def masked_mean(x, mask):
    """Mean of x over the True places of mask; what stands elsewhere, NaN too, has no part in it."""
    return x.masked_fill(mask == 0, 0).sum() / (mask != 0).sum().clamp(min=1)


def masked_whiten(x, mask):
    """x (B, T) -> mean 0, (biased) variance 1 over the mask, and 0 elsewhere."""
    centred = x - masked_mean(x, mask)
    return (centred * torch.rsqrt(masked_mean(centred**2, mask) + 1e-8)).masked_fill(mask == 0, 0)


def token_logprobs(logits, ids, mask):
    """logits (B, T, V), ids (B, T) -> log-probability of each id (B, T), float32, 0 off the mask."""
    logp = logits.float().log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0]
    return logp.masked_fill(mask == 0, 0)  # off the mask stands the pad, which is forbidden: -inf


def token_entropy(logits, mask):
    """logits (B, T, V), some of them -inf -> entropy (B, T) in nats, 0 off the mask."""
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp.masked_fill(logp == -math.inf, 0)).sum(-1).masked_fill(mask == 0, 0)


def kl_rewards(scores, logp, ref_logp, mask, beta):
    """Rewards (B, T): -beta * (logp - ref_logp) at each action, plus the score (B,) at the last one (EOS, or the cut)."""
    rewards = (-beta * (logp - ref_logp)).masked_fill(mask == 0, 0)
    last = (mask != 0).sum(1, keepdim=True) - 1
    return rewards.scatter_add(1, last, scores[:, None].to(rewards.dtype))


def survey_scores(scores, predictions, p):
    """Scores (B,), but of TRAVELER's vague questions (p not None) what people said: yes earns p, no 1 - p, on the scale of
    (8), -2 to 2; what is neither earns -2."""
    for i, (said, yes) in enumerate(zip(map(normalize, predictions), p, strict=True)):
        if yes is not None:
            scores[i] = 4 * {"yes": yes, "no": 1 - yes}.get(said, 0.0) - 2
    return scores


def above_the_others(scores, k):
    """Scores (B,) of k answers to each question in turn, less the mean of the other k - 1 to the same question.

    A baseline that tells hard questions from bad answers, which the value head does not within the first rollouts
    (Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE). Alone (k = 1, the paper's way) a score stays as it is.
    """
    if k == 1:
        return scores
    group = scores.view(-1, k)
    return (group - (group.sum(1, keepdim=True) - group) / (k - 1)).view(-1)


def most_contrast(scores, k, n):
    """Scores (B,) of k answers to each question in turn -> the n questions whose answers differ most, in their order.

    Where all answers score alike, `above_the_others` is 0 and there is nothing to learn: dynamic sampling, as in DAPO
    (Yu et al. 2025, https://arxiv.org/abs/2503.14476).
    """
    group = scores.view(-1, k)
    spread = group.max(1).values - group.min(1).values
    return sorted(spread.argsort(descending=True, stable=True)[:n].tolist())


def gae(rewards, values, mask, gamma, lam):
    """Generalised advantage estimation, https://arxiv.org/abs/1506.02438, within the mask of each row.

    rewards, values, mask (B, T), mask True on the left -> advantages, returns = advantages + values, both 0 off the mask.
    The value after the last action is 0: the answer is over.
    """
    rewards, values = rewards.masked_fill(mask == 0, 0), values.masked_fill(mask == 0, 0)
    advantages, last = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    next_value = last
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = last = delta + gamma * lam * last
        next_value = values[:, t]
    return advantages, advantages + values


def ppo_loss(
    logp, values, old_logp, old_values, advantages, returns, mask,
    cliprange=0.2, cliprange_value=0.2, vf_coef=1.0, n=None,
):  # fmt: skip
    """Clipped policy loss + vf_coef * clipped value loss of (B, T) tensors -> (scalar, dict of detached figures).

    Both are sums over the mask divided by n: the actions of the whole minibatch, when this is only a part of it. So are
    the figures: they add up over the parts, except ratio_max. Nothing off the mask counts, whatever stands there.
    """
    off, n = mask == 0, (mask != 0).sum() if n is None else n
    logp, values, old_logp, old_values, advantages, returns = (
        x.masked_fill(off, 0) for x in (logp, values, old_logp, old_values, advantages, returns)
    )
    logratio = logp - old_logp  # masked before exp: no inf * 0
    ratio = logratio.exp()
    pg_losses, pg_losses2 = -advantages * ratio, -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    vpredclipped = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
    pg_loss = torch.max(pg_losses, pg_losses2).sum() / n
    vf_loss = 0.5 * torch.max((values - returns) ** 2, (vpredclipped - returns) ** 2).sum() / n
    with torch.no_grad():
        figures = {
            "pg_loss": pg_loss.detach(),
            "vf_loss": vf_loss.detach(),
            "approx_kl": (ratio - 1 - logratio).sum() / n,  # k3 of http://joschu.net/blog/kl-approx.html: never below 0
            "clipfrac": (pg_losses2 > pg_losses).sum() / n,
            "ratio_mean": ratio.masked_fill(off, 0).sum() / n,
            "ratio_max": ratio.masked_fill(off, 0).max(),
        }
    return pg_loss + vf_coef * vf_loss, figures


def explained_variance(values, returns, mask):
    """1 - Var(returns - values) / Var(returns) over the mask: 1 = perfect critic, 0 = no better than a constant."""
    var = lambda x: masked_mean((x - masked_mean(x, mask)) ** 2, mask)
    return 1 - var(returns - values) / var(returns).clamp(min=1e-8)


class KLController:
    """Adaptive coefficient of the KL penalty: https://arxiv.org/abs/1909.08593, section 2.2, in the form of its code."""

    def __init__(self, init, target, horizon):
        assert target > 0 and horizon > 0, f"target {target} and horizon {horizon} must be positive"
        self.value, self.target, self.horizon = init, target, horizon

    def update(self, kl, n):
        """kl: mean over the rollout of the KL of a whole answer, in nats; n: answers in the rollout. Once a rollout."""
        error = min(max(float(kl) / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n / self.horizon


# ----------------------------------------------------------------------------------------------------------------------
# policy and rollout


def value_head(d_model):
    """Linear layer on the decoder's final hidden states; zero, so that the first advantages are the returns."""
    head = nn.Linear(d_model, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def frozen_copy(t5):
    """The reference: a copy of all weights, the temporal embedding included, that nothing moves."""
    return copy.deepcopy(t5).eval().requires_grad_(False)


def text_ids(tokenizer, vocab_size, device="cpu"):
    """(V,) of bool: ids an answer may hold: pieces and EOS; not the pad, not <unk>, no sentinels, no unused rows."""
    i = torch.arange(vocab_size, device=device)
    return (i == EOS) | (i > UNK) & (i < tokenizer.size)


def generator(*key):
    """A new random stream named by `key`: no stream disturbs another, and --resume has none to restore."""
    return torch.Generator().manual_seed(random.Random(repr(key)).getrandbits(63))


def draw(n, size, step, seed):
    """The questions of rollout `step`: `size` indices below n from endless passes, each over all n in a new order."""
    at = range(step * size, (step + 1) * size)
    orders = {e: torch.randperm(n, generator=generator(seed, "pass", e)) for e in {i // n for i in at}}
    return [int(orders[i // n][i % n]) for i in at]


def by_length(rows, index, size):
    """Yields this process's share of the questions `index` in lists of `size`, long sources together: little padding."""
    index = sorted(share(index), key=lambda i: -len(rows[i][0]))
    yield from (index[i : i + size] for i in range(0, len(index), size))


def answers_of(index, k, device="cpu"):
    """Rows of the (B, T) tensors that belong to the questions `index`: each has k answers, side by side."""
    return (torch.tensor(index, device=device)[:, None] * k + torch.arange(k, device=device)).flatten()


def forward(t5, source, ids, allowed, args):
    """ids (q * k, T) given the sources of q questions -> logits (q * k, T, V) float32, hidden states (q * k, T, D)

    Rollout, reference and update all come through here: one dtype, one temperature, the same ids forbidden (-inf) as in sampling.
    """
    with autocast(ids.device, args.dtype):
        hidden = t5.decode(shift_right(ids), t5.encode(*source), source[1])
        logits = t5.logits(hidden)
    return (logits / args.temperature).masked_fill(~allowed, -math.inf), hidden


def state_values(head, hidden):
    return head(hidden.float())[:, :, 0]  # (B, T); float32: it lies outside autocast


@torch.no_grad()
def sample(t5, rows, allowed, args, g):
    """args.samples answers to each question -> ids (B, T), zeros after EOS, T = the longest answer.

    g gives each answer its own random numbers: it does not depend on the chunk, or the process, that it is sampled in.
    """
    k, n, device = args.samples, args.max_new_tokens, allowed.device
    ids = torch.zeros(len(rows) * k, n, dtype=torch.long, device=device)
    uniform = torch.rand(ids.shape, dtype=torch.float64, generator=g).to(device)
    for index in by_length(rows, range(len(rows)), args.chunk_size):
        at, source = answers_of(index, k, device), collate([rows[i] for i in index], device)
        how = {"do_sample": True, "temperature": args.temperature, "allowed": allowed, "copies": k}
        with autocast(device, args.dtype):
            out = t5.generate(*source, n, uniform=uniform[at], **how)
        ids[at, : out.shape[1]] = out
    all_reduce(ids)
    return ids[:, : action_mask(ids).sum(1).max()]


@torch.no_grad()
def teacher_forced(policy, ref, rows, ids, allowed, args):
    """One forward of policy and reference on the stored ids -> dict of (B, T): logp, ref_logp, values, entropy."""
    mask, names = action_mask(ids), ("logp", "ref_logp", "values", "entropy")
    out = {name: torch.zeros(ids.shape, device=ids.device) for name in names}
    for index in by_length(rows, range(len(rows)), args.chunk_size):
        at, source = answers_of(index, args.samples, ids.device), collate([rows[i] for i in index], ids.device)
        at = at, slice(mask[at].sum(1).max())  # no further than their longest
        logits, hidden = forward(policy["t5"], source, ids[at], allowed, args)
        ref_logits, _ = forward(ref, source, ids[at], allowed, args)
        out["logp"][at] = token_logprobs(logits, ids[at], mask[at])
        out["ref_logp"][at] = token_logprobs(ref_logits, ids[at], mask[at])
        out["values"][at] = state_values(policy["value"], hidden).masked_fill(~mask[at], 0)
        out["entropy"][at] = token_entropy(logits, mask[at])
    for x in out.values():
        all_reduce(x)
    return out


# ----------------------------------------------------------------------------------------------------------------------
# scores and figures


def answer_kind(prediction, golds, known, ended):
    """One of KINDS: what an answer is, by its normalised text; known: (remote, proximal) negatives."""
    if not ended:
        return "truncated"
    if exact_match(prediction, golds):
        return "gold"
    said = normalize(prediction)
    if not said:
        return "empty"
    wrong = zip(("remote", "proximal"), known, strict=True)
    return next((kind for kind, answers in wrong if said in map(normalize, answers)), "other")


def rollout_figures(batch, predictions, kinds, scores):
    """What a rollout looks like, for metrics.jsonl: KL in nats a whole answer, shares in [0, 1].

    predictions, kinds, scores: of all answers sampled; batch: of those that are learned from.
    """
    mask, count = batch["mask"], Counter(kinds)
    figures = {
        "reward": scores.mean(),
        "reward_std": scores.std(correction=0),
        "kl": (batch["logp"] - batch["ref_logp"]).sum(1).mean(),
        "entropy": masked_mean(batch["entropy"], mask),
        "value": masked_mean(batch["values"], mask),
        "explained_variance": explained_variance(batch["values"], batch["returns"], mask),
        "eos_rate": 1 - count["truncated"] / len(kinds),
        "length": mask.sum(1).float().mean(),
        "commonest": max(Counter(predictions).values()) / len(predictions),  # near 1: the policy says one thing to all
    }
    for kind in KINDS:
        at = [i for i, k in enumerate(kinds) if k == kind]
        figures |= {f"share_{kind}": len(at) / len(kinds), f"reward_{kind}": scores[at].mean() if at else None}
    return rounded(figures)


def rounded(figures):
    return {k: None if v is None else round(float(v), 6) for k, v in figures.items()}


def update_figures(steps):
    """Mean over the minibatches of a rollout, but the largest ratio of all."""
    mean = {k: sum(float(s[k]) for s in steps) / len(steps) for k in steps[0]}
    return rounded(mean | {"ratio_max": max(float(s["ratio_max"]) for s in steps), "minibatches": len(steps)})


# ----------------------------------------------------------------------------------------------------------------------
# update


def minibatch_gradients(policy, rows, index, batch, allowed, args):
    """Adds the gradient of the loss over the questions `index`, a few at a time -> figures of ppo_loss"""
    ids, mask, zero = batch["ids"], batch["mask"], batch["logp"].new_zeros(())
    total = dict.fromkeys(("pg_loss", "vf_loss", "approx_kl", "clipfrac", "ratio_mean", "ratio_max"), zero)
    n = mask[answers_of(index, args.samples, ids.device)].sum()  # actions of the whole minibatch, not of a part
    for part in by_length(rows, index, args.chunk_size):
        at, source = answers_of(part, args.samples, ids.device), collate([rows[i] for i in part], ids.device)
        at = at, slice(mask[at].sum(1).max())  # no further than their longest
        logits, hidden = forward(policy["t5"], source, ids[at], allowed, args)
        logp, values = token_logprobs(logits, ids[at], mask[at]), state_values(policy["value"], hidden)
        old = [batch[k][at] for k in ("logp", "values", "advantages", "returns", "mask")]
        loss, figures = ppo_loss(logp, values, *old, args.cliprange, args.cliprange_value, args.vf_coef, n)
        loss.backward()
        for k, v in figures.items():
            total[k] = torch.max(total[k], v) if k == "ratio_max" else total[k] + v
    largest = total.pop("ratio_max").clone()
    all_reduce(largest, "MAX")
    sums = add_up(policy, torch.stack([*total.values()]))
    return dict(zip(total, sums, strict=True)) | {"ratio_max": largest}


def update(policy, optimizer, rows, batch, allowed, args, g):
    """ppo_epochs passes over the rollout, each in a new order -> figures of every minibatch

    Ends early, without the step, when the policy has moved too far from the one that sampled (approx_kl > stop_kl, or NaN).
    """
    steps = []
    for _ in range(args.ppo_epochs):
        for index in torch.randperm(len(rows), generator=g).split(args.batch_size // args.samples):
            figures = minibatch_gradients(policy, rows, index.tolist(), batch, allowed, args)
            figures["grad_norm"] = nn.utils.clip_grad_norm_(policy.parameters(), args.clip)
            steps.append(figures)
            if not figures["approx_kl"] <= args.stop_kl:
                optimizer.zero_grad()
                return steps
            optimizer.step()
            optimizer.zero_grad()
    return steps


# ----------------------------------------------------------------------------------------------------------------------
# the loop


def make_reward(args, ref, tokenizer, train):
    """-> reward(predictions, golds, negatives, ended) -> (B,); an answer that was cut off (not ended) gets -2."""
    if args.reward == "em":
        return em_reward
    model = ref
    if args.reward_model:
        model, tokenizer, _, _ = load_run(args.reward_model, ref.shared.weight.device)
    encoder = AnswerEncoder(model, tokenizer, [answer for ex in train for answer in ex.answers])
    return TripletReward(encoder, MARGIN if args.margin is None else args.margin)


def wrong_answers(train, args):
    """-> function of a training question: the negatives of its reward, and (remote, proximal) that its figures know."""
    index = FactIndex(train)

    @functools.cache
    def look_up(i):
        known = negatives(train[i], "both", 64, None, args.seed)  # the same whatever the reward knows
        remote, proximal = negatives(train[i], args.negatives, args.n_negatives, index, args.seed)
        return remote + proximal, known

    return look_up


def inherit(args, told, config):
    """Fills in what was not given from the checkpoint's own run: its data, its tagger, its window."""
    defaults = {"data": "mini", "data_dir": None, "passages": "relevant", "tagger": "rules"}
    defaults |= {"spacy_model": "en_core_web_sm", "window": config.time_window}
    for name, default in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, told.get(name) or default)
    args.no_time = args.no_time or bool(told.get("no_time"))
    generated, mini = args.data in GENERATED, args.data.startswith("mini")
    same = args.data == told.get("data", args.data)
    args.setting = args.setting or (same and told.get("setting")) or ("mix" if mini else "reason")
    args.n_train, args.n_dev = args.n_train or (6000 if generated else None), args.n_dev or (300 if generated else None)


def ppo(args):
    """Stage 2: PPO from args.ckpt on the training questions; keeps the weights that answer the dev questions best."""
    if weights_file(Path(args.ckpt)) is None:
        raise UserError(f"--ckpt: {args.ckpt} holds no fine-tuned model; make one with: python tsqa.py --stage sft")
    if Path(args.out).resolve() == Path(args.ckpt).resolve():
        raise UserError(f"--out {args.out} is the checkpoint itself; choose another directory")
    with together(in_turn=True):
        t5, tokenizer, _, told = load_run(args.ckpt, args.device)
        if told.get("stage") != "sft" and "ckpt" not in told:
            model = f"python tsqa.py --stage sft --model {args.ckpt}"
            raise UserError(f"--ckpt: {args.ckpt} is not fine-tuned; do it with: {model}")
        inherit(args, told, t5.config)
        out, state = open_run(args)
        tagger = None if args.no_time else TimeTagger(args.tagger, args.spacy_model)
        # generated questions are new ones: to those of stage 1 most answers are right, which leaves little to compare
        new = f"ppo {args.seed}" if args.data in GENERATED else args.seed
        train, dev = (
            load_bench(args.data, args.setting, split, args.data_dir, n, seed, args.skip_bad)
            for split, n, seed in (("train", args.n_train, new), ("dev", args.n_dev, args.seed))
        )
    (rank, _), device, k, t5.config.time_window = ranks(), t5.shared.weight.device, args.samples, args.window
    with together():
        pairs = [(ex.question, ex.context) for ex in share(train)]
        sources = encode_sources(tokenizer, tagger, pairs, args.window, t5.config.max_source, args.passages)
    sources = gather(sources)
    t5.time_embedding.requires_grad_(not args.no_time)  # without marks its row 0 would be trained as a bias
    iterations = args.iterations or math.ceil(args.epochs * len(train) / (args.num_rollouts // k))

    policy = nn.ModuleDict({"t5": t5, "value": value_head(t5.config.d_model).to(device)}).eval()  # no dropout anywhere
    ref, kl = frozen_copy(t5), KLController(args.init_kl_coef, args.target, args.horizon)
    allowed = text_ids(tokenizer, t5.config.vocab_size, device)
    with together(in_turn=True):
        reward, look_up = make_reward(args, ref, tokenizer, train), wrong_answers(train, args)
    named = [(name, p) for name, p in policy["t5"].named_parameters() if p.requires_grad]
    groups = [g | {"peak": args.lr * g["rate"]} for g in parameter_groups(named, {"q.weight": args.q_rate})]
    groups += [{"params": policy["value"].parameters(), "peak": args.value_lr or args.lr}]
    optimizer = torch.optim.Adam(groups, eps=1e-5)
    step, best = 0, {"em": -1.0, "first": None}
    if state:
        restore(out, state, model=policy, optimizer=optimizer)
        step, best, kl.value = state["step"], state["best"], state["best"]["beta"]
    if args.compile:
        compiled(t5)  # the reference is a copy, and stays as it is
    with together():
        begin_run(out, args, state)

    def judge():
        scores = evaluate_dev(t5, tokenizer, tagger, dev, args)
        log_metrics(out, step=step, **{f"dev_{name}": v for name, v in scores.items()})
        if best["first"] is None:
            best["first"] = scores["em"]
        better, best["em"] = scores["em"] > best["em"], max(scores["em"], best["em"])
        with together():
            if better and rank == 0:
                tokenizer.save(out)
                write_card(out, args, scores, len(dev), step)
                t5.save_pretrained(out)
        bar.write(f"rollout {step}: dev EM {scores['em']:.1f}, F1 {scores['f1']:.1f} (n = {len(dev)})", file=sys.stderr)

    def save():
        save_trainer(out, policy, optimizer, step, best | {"beta": kl.value})
        return time.time()

    bar = tqdm(total=iterations, initial=step, unit="rollout", disable=None)
    with interruptible(lambda: f"rollout {step} of {iterations}", state and rank == 0):
        with together():
            saved = save()
        if best["first"] is None:
            judge()  # a run never ends with less than it began with
        with together():
            saved = save()
        while step < iterations:
            # 1. questions, and answers sampled from the policy
            index = draw(len(train), args.num_rollouts // k * args.oversample, step, args.seed)
            rows, asked = [sources[i] for i in index], [i for i in index for _ in range(k)]
            ids = sample(t5, rows, allowed, args, generator(args.seed, "sample", step))
            # 2. scores of whole answers, and the questions to learn from
            predictions, ended = [tokenizer.decode(row) for row in ids.tolist()], (ids == EOS).any(1).tolist()
            golds, (wrong, known) = [train[i].answers for i in asked], zip(*map(look_up, asked), strict=True)
            scores = reward(predictions, golds, wrong, ended).to(device)
            scores = survey_scores(scores, predictions, [getattr(train[i], "p", None) for i in asked])
            kinds = list(map(answer_kind, predictions, golds, known, ended))
            kept = most_contrast(scores, k, args.num_rollouts // k)
            rows, at = [rows[i] for i in kept], answers_of(kept, k, device)
            # 3. log-probabilities, reference and values: one teacher-forced forward on the stored ids
            batch = {"ids": ids[at], "mask": action_mask(ids[at])}
            batch |= teacher_forced(policy, ref, rows, batch["ids"], allowed, args)
            # 4. rewards: the KL penalty at every piece, the score at the last one
            contrast = above_the_others(scores[at], k)
            rewards = kl_rewards(contrast, batch["logp"], batch["ref_logp"], batch["mask"], kl.value)
            # 5. returns from the advantages as they are, then the advantages whitened over the rollout
            advantages, batch["returns"] = gae(rewards, batch["values"], batch["mask"], args.gamma, args.lam)
            batch["advantages"] = masked_whiten(advantages, batch["mask"])
            figures = rollout_figures(batch, predictions, kinds, scores) | {"beta": round(kl.value, 6)}
            if not figures["kl"] <= args.max_kl:
                log_metrics(out, step=step + 1, **figures, stopped="kl")
                bar.write(f"stopped: KL {figures['kl']:.1f} to the reference is above {args.max_kl}", file=sys.stderr)
                break
            # 6. clipped updates
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * schedule(step, iterations, 0)
            steps = update(policy, optimizer, rows, batch, allowed, args, generator(args.seed, "order", step))
            worst = sum(float(sum(figures.values())) for figures in steps)  # no number if any of them is none
            check_loss(worst, f"rollout {step + 1}", [train[i].id for i in index], out)
            # 7. the KL coefficient, once
            kl.update(figures["kl"], len(at))
            step += 1
            log_metrics(out, step=step, **figures, **update_figures(steps), lr=optimizer.param_groups[0]["lr"])
            bar.update()
            bar.set_postfix(
                reward=f"{figures['reward']:.2f}", gold=f"{figures['share_gold']:.0%}", kl=f"{figures['kl']:.2f}",
                entropy=f"{figures['entropy']:.2f}", dev=f"{best['em']:.1f}",
            )  # fmt: skip
            if figures["commonest"] > 0.5:
                bar.write(f"rollout {step}: {figures['commonest']:.0%} of the answers are the same", file=sys.stderr)
            # 8. dev
            if due := step % args.eval_every == 0 or step == iterations:
                judge()
            with together():
                if due or time.time() - saved > args.save_minutes * 60:
                    saved = save()
    bar.close()
    print(
        f"best dev EM {best['em']:.1f} (at the start {best['first']:.1f}); the model is in {out}; "
        f"next: python evaluate.py --ckpt {args.ckpt} {out}"
    )


# ----------------------------------------------------------------------------------------------------------------------
# command line

PAPER = {  # Table 6 and section 4.1; the paper gives no learning rate for this stage: that of stage 1
    "num_rollouts": 256, "chunk_size": 12, "ppo_epochs": 4, "init_kl_coef": 0.05, "target": 6.0, "horizon": 10000,
    "gamma": 0.99, "lam": 0.95, "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 1.0,
    "batch_size": 16, "epochs": 10, "samples": 1, "oversample": 1, "window": 10, "tagger": "ner",
    "lr": 5e-6, "value_lr": None, "q_rate": 1.0,
}  # fmt: skip
EXAMPLES = """examples:
  python ppo.py
      from runs/sft, on the data it was trained on; writes runs/ppo
  python ppo.py --ckpt runs/l2 --paper --out runs/l2-ppo
      the paper's Table 6
  python ppo.py --reward em --out runs/tempt5
      the reward of TempT5 in place of the triplet reward
"""


# fmt: off
COUNT, AMOUNT, SHARE, ABOVE = number(int, 1, 10**9), number(float, 0, 1e9), number(float, 0, 1), number(float, 1e-9, 1e9)
SEED, WINDOW, PIECES = number(int, 0, 2**31), number(int, 0, 10**6), number(int, 2, 10**4)
FLAGS = {  # group: (name, type or choices, default, help); None: the help says what happens
    "model (where there is no default, as the checkpoint was trained)": [
        ("ckpt", str, "runs/sft", "run directory of the model to start from"),
        ("no-time", bool, False, "no temporal embedding; or if the checkpoint has none"),
        ("window", WINDOW, None, "L of (5): pieces marked on each side of a time"),
        ("tagger", ("rules", "ner", "both"), None, "finder of time expressions"),
        ("spacy-model", str, None, "of --tagger ner and both"),
        ("device", str, None, "cpu, cuda or cuda:1 (default: cuda, if any, else cpu)"),
        ("dtype", ("auto", "float32", "bfloat16"), "auto", "auto is bfloat16 where fast"),
        ("compile", bool, False, "torch.compile: slow to start; slower on CPUs"),
    ],
    "data (by default the checkpoint's)": [
        ("data", BENCHES, None, ", ".join(BENCHES)),
        ("setting", ("reason", "obqa", "mix"), None, "facts, free text, or (mini) both"),
        ("data-dir", str, None, "folder of the official files"),
        ("skip-bad", bool, False, "leave out wrong lines of data files, and count them (default: stop)"),
        ("passages", PASSAGES, None, "what is kept of a text that is too long"),
        ("n-train", COUNT, None, "training questions (default: all; generated: 6000)"),
        ("n-dev", COUNT, None, "dev questions (default: all; generated: 300)"),
    ],
    "reward": [
        ("reward", ("triplet", "em"), "triplet", "(7)(8), or +1 gold, -1 negative, -2 other as in TempT5"),
        ("negatives", ("both", "remote", "proximal", "none"), "both", "which wrong answers the reward knows"),
        ("n-negatives", COUNT, 4, "wrong answers of a question"),
        ("margin", AMOUNT, None, "margin of (7) (default: that of reward.py)"),
        ("reward-model", str, None, "model whose encoder compares answers (default: the checkpoint)"),
    ],
    "rollout": [
        ("num-rollouts", COUNT, 256, "answers sampled between updates"),
        ("samples", COUNT, 4, "answers to each question of a rollout"),
        ("oversample", COUNT, 4, "questions sampled for each that is learned from: answers that differ"),
        ("chunk-size", COUNT, 8, "questions of one forward pass"),
        ("max-new-tokens", PIECES, 32, "pieces of an answer, EOS included; a longer one is cut and scores -2"),
        ("temperature", ABOVE, 1.0, "of the policy and of the reference, everywhere"),
    ],
    "ppo": [
        ("iterations", COUNT, None, "rollouts in all (default: 15)"),
        ("epochs", COUNT, None, "of the training questions, in place of --iterations"),
        ("batch-size", COUNT, 64, "answers of an optimizer step"),
        ("ppo-epochs", COUNT, 2, "passes over each rollout"),
        ("lr", AMOUNT, 5e-5, "peak rate of Adam, then linear to 0"),
        ("value-lr", AMOUNT, 1e-3, "of the value head; 0: that of --lr"),
        ("q-rate", AMOUNT, 0.1, "multiple of --lr for the query weights"),
        ("clip", ABOVE, 1.0, "largest gradient norm"),
        ("init-kl-coef", AMOUNT, 0.05, "KL penalty at the start, per nat"),
        ("target", ABOVE, 1.0, "KL to the reference aimed at, nats an answer"),
        ("horizon", ABOVE, 2000.0, "answers over which the KL penalty adapts"),
        ("gamma", SHARE, 1.0, "discount from piece to piece"),
        ("lam", SHARE, 0.95, "lambda of the advantage estimation"),
        ("cliprange", ABOVE, 0.2, "the ratio of probabilities counts within 1 +- this"),
        ("cliprange-value", ABOVE, 0.5, "values move no further than this in a rollout"),
        ("vf-coef", AMOUNT, 0.1, "weight of the value loss"),
        ("stop-kl", ABOVE, 0.1, "approx_kl, in nats a piece, that ends the updates of a rollout"),
        ("max-kl", ABOVE, None, "KL to the reference that ends the run (default: 10 times --target)"),
        ("seed", SEED, 0, "of data, order and sampling"),
    ],
    "run": [
        ("out", str, "runs/ppo", "run directory"),
        ("args", str, None, "args.json of a run: its arguments, where no flag says otherwise"),
        ("resume", bool, False, "go on with an interrupted run of the same arguments"),
        ("overwrite", bool, False, "replace another run in --out"),
        ("eval-every", COUNT, 5, "rollouts between dev scores"),
        ("save-minutes", AMOUNT, 2.0, "between states for --resume"),
    ],
}
# fmt: on


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description="Improve a fine-tuned T5 by contrastive reinforcement learning (stage 2).",
        epilog=EXAMPLES,
        formatter_class=Help,
    )
    p.add_argument("--paper", action="store_true", help="all of the paper's settings as defaults")
    for title, flags in FLAGS.items():
        group = p.add_argument_group(title)
        for name, kind, default, text in flags:
            if kind is bool:
                group.add_argument(f"--{name}", action="store_true", help=text)
                continue
            how = {"choices": kind} if isinstance(kind, (tuple, list)) else {"type": kind}
            how |= {"metavar": "NAME"} if kind is BENCHES else {}
            group.add_argument(f"--{name}", default=default, help=text, **how)
    argv = sys.argv[1:] if argv is None else list(argv)
    argv = flags_of_run(p, argv) + argv
    p.set_defaults(**(PAPER if p.parse_args(argv).paper else {}))
    args = p.parse_args(argv)
    for name in ("num_rollouts", "batch_size"):
        if getattr(args, name) % args.samples:
            flag, value = name.replace("_", "-"), getattr(args, name)
            raise UserError(f"--{flag} {value} must be a multiple of --samples {args.samples}: change one of them")
    if args.num_rollouts >= 5 * args.horizon:
        raise UserError(
            f"--horizon {args.horizon:g} is too short for --num-rollouts {args.num_rollouts}: the KL penalty would change "
            f"sign; give more than {args.num_rollouts / 5:g}"
        )
    if args.iterations is None and args.epochs is None:
        args.iterations = 15
    args.max_kl = args.max_kl or 10 * args.target
    return args


def main(argv=None):
    args = parse_args(argv)
    with processes():
        ppo(args)


if __name__ == "__main__":
    run(main)
