"""Stage 2. Each test was seen to fail on a version of ppo.py broken in the way its name says."""

import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import data
import ppo
import tsqa
from data import EOS, PAD, Tokenizer, UserError

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="session")
def tokenizer():
    return Tokenizer(ROOT / "assets" / "tiny-t5")


@pytest.fixture(scope="session")
def small(tmp_path_factory, tokenizer):
    """A directory with a random model of 60,000 parameters, dropout 0.1 in its configuration, and the bundled tokenizer."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("small")
    c = tsqa.T5Config(d_model=24, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, time_window=2)
    t5 = tsqa.T5(c)
    t5.time_embedding.weight.data.normal_()  # as after stage 1
    t5.shared.weight.data *= 0.3  # no answer is much likelier than another
    t5.save_pretrained(directory)
    tokenizer.save(directory)
    (directory / "args.json").write_text('{"stage": "sft"}')
    return directory


text_ids = ppo.text_ids


def arguments(*more):
    base = (
        "--num-rollouts 12 --samples 2 --batch-size 4 --chunk-size 4 --ppo-epochs 3 --max-new-tokens 6 --iterations 3"
    )
    base += (
        " --n-train 20 --n-dev 4 --dtype float32 --setting reason --lr 1e-2 --stop-kl 1e6 --max-kl 1e6 --eval-every 2"
    )
    return ppo.parse_args([*base.split(), *map(str, more)])


def metrics(out):
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def few_ids(tokenizer, vocab_size, device="cpu"):
    """Five of the ids that text_ids allows: a random model ends some of its answers, though not all."""
    i = torch.arange(vocab_size, device=device)
    return text_ids(tokenizer, vocab_size, device) & (i % 500 == EOS)


class World:
    """What the loop holds after it has sampled: a policy, its reference, sources and a scored rollout."""

    def __init__(self, directory, args, n=6, seed=0, ids=few_ids, pairs=None):
        self.args = args
        t5, self.tokenizer, tagger, _ = tsqa.load_run(directory)
        self.policy = nn.ModuleDict({"t5": t5, "value": ppo.value_head(24)}).eval()
        self.ref = ppo.frozen_copy(t5)
        self.allowed = ids(self.tokenizer, t5.config.vocab_size)
        pairs = pairs or [(ex.question, ex.context) for ex in data.mini("train", n=n)]
        self.rows = tsqa.encode_sources(self.tokenizer, tagger, pairs, 2, 512)
        self.ids = ppo.sample(t5, self.rows, self.allowed, args, ppo.generator("test", seed))
        self.mask = ppo.action_mask(self.ids)
        assert ids is text_ids or self.ids.shape[1] == 1 or self.mask.sum(1).unique().numel() > 1, "no ragged rows"
        self.batch = {"ids": self.ids, "mask": self.mask} | self.teacher()
        scores = torch.randn(len(self.ids), generator=ppo.generator("scores"))
        rewards = ppo.kl_rewards(scores, self.batch["logp"], self.batch["ref_logp"], self.mask, 0.1)
        advantages, self.batch["returns"] = ppo.gae(rewards, self.batch["values"], self.mask, 1.0, 0.95)
        self.batch["advantages"] = ppo.masked_whiten(advantages, self.mask)

    def teacher(self):
        return ppo.teacher_forced(self.policy, self.ref, self.rows, self.ids, self.allowed, self.args)

    def update(self, optimizer):
        return ppo.update(
            self.policy, optimizer, self.rows, self.batch, self.allowed, self.args, ppo.generator("order")
        )


def ragged(B=40, T=7, dtype=torch.float64, seed=0):
    """Rewards, values and a mask of rows of length 1 to T, the longest and the shortest among them."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.cat([torch.tensor([1, T]), torch.randint(1, T + 1, (B - 2,), generator=g)])
    mask = torch.arange(T) < lengths[:, None]
    return (*(torch.randn(B, T, dtype=dtype, generator=g) for _ in range(2)), mask)


# ---- masks


def test_baseline_of_the_other_answers_to_the_same_question():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(12, generator=g)
    expected = [s - sum(scores[4 * (i // 4) + j] for j in range(4) if j != i % 4) / 3 for i, s in enumerate(scores)]
    assert torch.allclose(ppo.above_the_others(scores, 4), torch.stack(expected), atol=1e-6)
    assert torch.equal(ppo.above_the_others(scores, 1), scores)
    assert not ppo.above_the_others(torch.tensor([2.0, 2.0, -1.0, -1.0]), 2).any()  # all alike: nothing to learn


def test_vague_questions_earn_what_people_said():
    said, p = ["Yes.", "no", "maybe", "yes", ""], [0.75, 0.75, 0.75, None, 0.2]
    assert ppo.survey_scores(torch.full((5,), 0.5), said, p).tolist() == [1.0, -1.0, -2.0, 0.5, -2.0]


def test_questions_whose_answers_differ_most_are_learned_from():
    scores = torch.tensor([1.0, 1.0, 0.0, 2.0, 5.0, 5.0, 3.0, 0.0, 1.0, 2.0, 2.0, 1.0])
    assert ppo.most_contrast(scores, 2, 2) == [1, 3] and ppo.most_contrast(scores, 3, 1) == [1]
    assert ppo.most_contrast(scores, 2, 3) == [1, 3, 4]  # of equals the first
    assert ppo.most_contrast(scores, 2, 6) == list(range(6)) and ppo.most_contrast(scores, 1, 3) == [0, 1, 2]


def test_action_mask_by_hand():
    rows = [[7, 8, 1, 0], [1, 0, 0, 0], [7, 8, 9, 9], [0, 7, 1, 0], [7, 1, 5, 1], [1, 1, 1, 1]]
    want = [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert ppo.action_mask(torch.tensor(rows)).tolist() == [[bool(x) for x in row] for row in want]


def test_action_mask_against_a_loop():
    ids = torch.randint(0, 4, (500, 6), generator=torch.Generator().manual_seed(0))
    want = [[EOS not in row[:t] for t in range(len(row))] for row in ids.tolist()]
    assert ppo.action_mask(ids).tolist() == want


def test_text_ids_are_what_the_tokenizer_can_say(tokenizer):
    allowed = ppo.text_ids(tokenizer, 2176)
    assert allowed[EOS] and not allowed[PAD] and not allowed[2] and allowed[3]
    assert allowed[tokenizer.size - 1] and not allowed[tokenizer.size :].any()
    assert not allowed[[tokenizer.sentinel(0), tokenizer.sentinel(99)]].any()


# ---- advantages


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.99, 0.95), (0.9, 0.3), (0.5, 0.0), (1.0, 1.0)])
def test_gae_against_the_double_sum(gamma, lam):
    rewards, values, mask = ragged()
    got, returns = ppo.gae(rewards, values, mask, gamma, lam)
    for b in range(len(mask)):
        n = int(mask[b].sum())
        v = [*values[b, :n].tolist(), 0.0]  # nothing comes after the last action
        delta = [float(rewards[b, t]) + gamma * v[t + 1] - v[t] for t in range(n)]
        for t in range(mask.shape[1]):
            want = sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, n))
            assert got[b, t].item() == pytest.approx(want, abs=1e-12)
            assert returns[b, t].item() == pytest.approx(want + (v[t] if t < n else 0), abs=1e-12)


def test_gae_of_ragged_rows_is_that_of_each_row_alone():
    rewards, values, mask = ragged()
    together = ppo.gae(rewards, values, mask, 0.99, 0.95)
    for b in range(len(mask)):
        n = int(mask[b].sum())
        alone = ppo.gae(rewards[b : b + 1, :n], values[b : b + 1, :n], mask[b : b + 1, :n], 0.99, 0.95)
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[b, :n], y[0]) and not x[b, n:].any()


def test_gae_without_discount_gives_reward_to_go():
    rewards, values, mask = ragged()
    _, returns = ppo.gae(rewards, values, mask, 1.0, 1.0)
    to_go = (rewards * mask).flip(1).cumsum(1).flip(1) * mask
    assert torch.allclose(returns, to_go, atol=1e-12)


@pytest.mark.parametrize("garbage", [NAN, INF, 1e9])
def test_nothing_off_the_mask_counts(garbage):
    rewards, values, mask = ragged()
    dirty = [x.masked_fill(~mask, garbage) for x in (rewards, values)]
    for x, y in zip(ppo.gae(rewards, values, mask, 0.9, 0.9), ppo.gae(*dirty, mask, 0.9, 0.9), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(ppo.masked_whiten(rewards, mask), ppo.masked_whiten(dirty[0], mask))
    assert ppo.masked_mean(rewards, mask) == ppo.masked_mean(dirty[0], mask)
    assert ppo.explained_variance(values, rewards, mask) == ppo.explained_variance(dirty[1], dirty[0], mask)
    scores = torch.ones(len(mask), dtype=torch.float64)
    assert torch.equal(ppo.kl_rewards(scores, *dirty, mask, 0.1), ppo.kl_rewards(scores, rewards, values, mask, 0.1))


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float64])
def test_whitening_against_numpy_free_arithmetic(kind):
    x, _, mask = ragged()
    x = 3 * x + 5
    got = ppo.masked_whiten(x, mask.to(kind))
    kept = x[mask].tolist()
    mean = math.fsum(kept) / len(kept)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in kept) / len(kept))  # biased: over n, not n - 1
    assert got[mask].tolist() == pytest.approx([(v - mean) / deviation for v in kept], abs=1e-7)
    assert not got[~mask].any()


def test_whitening_of_one_action_and_of_equal_ones_is_zero():
    one = torch.tensor([[True, False]])
    assert ppo.masked_whiten(torch.tensor([[3.0, 7.0]]), one).tolist() == [[0, 0]]
    assert not ppo.masked_whiten(torch.full((3, 2), 2.0), torch.ones(3, 2)).any()


def test_explained_variance_by_hand():
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, 99.0]]), torch.tensor([[True, True, True, False]])
    assert ppo.explained_variance(returns.clone(), returns, mask) == 1
    assert ppo.explained_variance(torch.full_like(returns, 7.0), returns, mask).abs() < 1e-6
    assert ppo.explained_variance(-returns, returns, mask).item() == pytest.approx(-3)


# ---- rewards


def test_the_score_lands_on_the_eos():
    ids = torch.tensor([[7, 8, 1, 0], [1, 0, 0, 0], [7, 8, 9, 9], [7, 1, 0, 0]])
    logp, ref = torch.full((4, 4), -1.0), torch.full((4, 4), -1.5)
    rewards = ppo.kl_rewards(torch.tensor([10.0, 20, 30, 40]), logp, ref, ppo.action_mask(ids), 0.2)
    want = [[-0.1, -0.1, 9.9, 0], [19.9, 0, 0, 0], [-0.1, -0.1, -0.1, 29.9], [-0.1, 39.9, 0, 0]]
    assert torch.allclose(rewards, torch.tensor(want))


@pytest.mark.parametrize(
    ("prediction", "golds", "ended", "kind"),
    [
        ("The Acme.", ["x", "acme"], True, "gold"),
        ("acme", ["acme"], False, "truncated"),
        ("", ["acme"], True, "empty"),
        ("the", ["acme"], True, "empty"),
        ("", [""], True, "gold"),
        ("ROME", ["acme"], True, "remote"),
        ("bonn", ["acme"], True, "proximal"),
        ("Rome Bonn", ["acme"], True, "other"),
    ],
)
def test_kinds_of_answers(prediction, golds, ended, kind):
    assert ppo.answer_kind(prediction, golds, (["Rome"], ["Bonn!"]), ended) == kind


def test_rollout_figures_by_hand():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    x = torch.tensor([[1.0, 2.0, NAN], [3.0, 4.0, 5.0]])
    zeros = torch.zeros(2, 3)
    batch = {"mask": mask, "logp": x.masked_fill(~mask, 0), "ref_logp": zeros, "values": zeros, "returns": x}
    f = ppo.rollout_figures(batch | {"entropy": x}, ["a", "b"], ["gold", "truncated"], torch.tensor([2.0, -2.0]))
    assert f["kl"] == (1 + 2 + 3 + 4 + 5) / 2  # of a whole answer, not of a piece
    assert (f["entropy"], f["length"], f["eos_rate"], f["reward"], f["reward_std"]) == (3, 2.5, 0.5, 0, 2)
    assert (f["share_gold"], f["reward_gold"], f["reward_truncated"], f["reward_empty"]) == (0.5, 2, -2, None)
    assert f["commonest"] == 0.5 and f["explained_variance"] == 0


# ---- KL controller


def test_kl_controller_by_numbers():
    c = ppo.KLController(0.2, 6, 10_000)
    c.update(12, 64)
    assert c.value == pytest.approx(0.200256, rel=1e-12)  # the error of 1 is cut to 0.2
    c.update(6, 64)
    assert c.value == pytest.approx(0.200256, rel=1e-12)
    c.update(torch.tensor(0.0), 64)
    assert c.value == pytest.approx(0.200256 * (1 - 0.2 * 0.0064), rel=1e-12)
    c.update(6.6, 1000)
    assert c.value == pytest.approx(0.200256 * (1 - 0.2 * 0.0064) * (1 + 0.1 * 0.1), rel=1e-9)


@pytest.mark.parametrize(("target", "horizon"), [(0, 10), (-1, 10), (6, 0)])
def test_kl_controller_refuses_what_makes_no_sense(target, horizon):
    with pytest.raises(AssertionError, match="positive"):
        ppo.KLController(0.1, target, horizon)


# ---- losses


def loss_inputs(B=5, T=4):
    g = torch.Generator().manual_seed(0)
    _, _, mask = ragged(B, T)
    return [torch.randn(B, T, dtype=torch.float64, generator=g) for _ in range(6)], mask


def test_loss_against_a_loop():
    (logp, values, old_logp, old_values, advantages, returns), mask = loss_inputs()
    loss, figures = ppo.ppo_loss(logp, values, old_logp, old_values, advantages, returns, mask, 0.2, 0.3, 0.5)
    pg, vf, clipped, kl, n = 0.0, 0.0, 0, 0.0, int(mask.sum())
    for b, t in mask.nonzero().tolist():
        r = math.exp(logp[b, t] - old_logp[b, t])
        a, v, v0, ret = (float(x[b, t]) for x in (advantages, values, old_values, returns))
        plain, cut = r * a, min(max(r, 0.8), 1.2) * a
        pg, clipped, kl = pg - min(plain, cut), clipped + (cut < plain), kl + r - 1 - math.log(r)
        vf += 0.5 * max((v - ret) ** 2, (min(max(v, v0 - 0.3), v0 + 0.3) - ret) ** 2)
    assert loss.item() == pytest.approx(pg / n + 0.5 * vf / n, rel=1e-12)
    assert figures["pg_loss"].item() == pytest.approx(pg / n) and figures["vf_loss"].item() == pytest.approx(vf / n)
    assert figures["clipfrac"].item() == pytest.approx(clipped / n) and 0 < clipped < n
    assert figures["approx_kl"].item() == pytest.approx(kl / n)
    ratio = (logp - old_logp).exp()[mask]
    assert figures["ratio_mean"].item() == pytest.approx(ratio.mean().item())
    assert figures["ratio_max"] == ratio.max()


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e9])
def test_loss_and_gradient_ignore_what_is_off_the_mask(garbage):
    tensors, mask = loss_inputs()
    results = []
    for fill in (0.0, garbage):
        xs = [x.masked_fill(~mask, fill) for x in tensors]
        xs[0].requires_grad_(), xs[1].requires_grad_()
        loss, figures = ppo.ppo_loss(*xs, mask)
        loss.backward()
        results.append([loss.detach(), *figures.values(), xs[0].grad, xs[1].grad])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    assert not results[1][-1][~mask].any() and not results[1][-2][~mask].any()


def test_first_gradient_is_the_policy_gradient():
    """At ratio 1 the clip is idle: d loss / d logp = -advantage / n."""
    (logp, values, _, _, advantages, returns), mask = loss_inputs()
    logp.requires_grad_()
    ppo.ppo_loss(logp, values, logp.detach(), values, advantages, returns, mask)[0].backward()
    assert torch.allclose(logp.grad, (-advantages / mask.sum()).masked_fill(~mask, 0))


def test_loss_of_parts_adds_up_to_that_of_the_whole():
    tensors, mask = loss_inputs(B=8)
    whole, figures = ppo.ppo_loss(*tensors, mask)
    parts = [ppo.ppo_loss(*(x[s] for x in (*tensors, mask)), n=mask.sum()) for s in (slice(0, 1), slice(1, 8))]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-12)
    for name in figures.keys() - {"ratio_max"}:
        assert sum(f[name] for _, f in parts).item() == pytest.approx(figures[name].item(), rel=1e-12)


def test_logprobs_and_entropy():
    logits = torch.tensor([[[0.0, 1.0, -INF, 2.0], [0.0, -INF, 0.0, 0.0]]])
    ids, mask = torch.tensor([[3, 1]]), torch.tensor([[True, False]])
    z = 1 + math.e + math.e**2
    assert ppo.token_logprobs(logits, ids, mask).tolist() == [[pytest.approx(2 - math.log(z)), 0]]
    p = [1 / z, math.e / z, math.e**2 / z]
    assert ppo.token_entropy(logits, mask).tolist() == [[pytest.approx(-sum(q * math.log(q) for q in p)), 0]]
    half = ppo.token_logprobs(logits.bfloat16(), ids, mask)
    assert half.dtype == torch.float32 and half[0, 0].item() == pytest.approx(2 - math.log(z), abs=1e-6)


# ---- sampling and the two forwards


def test_ratio_is_one_and_kl_zero_before_the_first_step(small):
    w = World(small, arguments())
    assert torch.equal(w.batch["logp"], w.batch["ref_logp"])
    first = w.update(torch.optim.Adam(w.policy.parameters(), lr=1e-2))[0]
    assert abs(first["ratio_max"] - 1) < 1e-5 and abs(first["ratio_mean"] - 1) < 1e-5
    assert abs(first["approx_kl"]) < 1e-8 and first["clipfrac"] == 0


def test_ratio_stays_one_in_every_epoch_at_learning_rate_zero(small):
    w = World(small, arguments("--temperature", 0.7))
    steps = w.update(torch.optim.Adam(w.policy.parameters(), lr=0.0, eps=1e-5))
    assert len(steps) == 3 * 3  # epochs * minibatches
    assert all(abs(s["ratio_max"] - 1) < 1e-5 and abs(s["approx_kl"]) < 1e-8 and s["clipfrac"] == 0 for s in steps)
    assert all(torch.equal(x, y) for x, y in zip(w.teacher().values(), [w.batch[k] for k in w.teacher()], strict=True))


def test_ratio_moves_when_the_policy_does(small):
    w = World(small, arguments())
    steps = w.update(torch.optim.Adam(w.policy.parameters(), lr=1e-2))
    assert steps[-1]["approx_kl"] > 1e-3 and steps[-1]["ratio_max"] > 1.01
    after = w.teacher()
    assert (after["logp"] - after["ref_logp"]).abs().max() > 1e-2


def test_no_dropout_in_any_forward(small):
    w = World(small, arguments())
    assert w.policy["t5"].config.dropout_rate == 0.1
    assert not any(m.training for m in [*w.policy.modules(), *w.ref.modules()])
    assert all(torch.equal(x, y) for x, y in zip(w.teacher().values(), w.teacher().values(), strict=True))


def test_log_probabilities_against_one_row_at_a_time(small):
    """Batched, k answers a source, padded on both sides = the model's own forward on each row alone."""
    w = World(small, arguments("--temperature", 0.7))
    with torch.no_grad():
        w.policy["value"].weight.normal_()
    t = w.teacher()
    for b in range(len(w.ids)):
        ids, mask, marks = tsqa.collate([w.rows[b // 2]], "cpu")
        y = w.ids[b : b + 1, : int(w.mask[b].sum())]
        t5, n = w.policy["t5"], y.shape[1]
        with torch.no_grad():
            logits = t5(ids, mask, y, marks)[0].masked_fill(~w.allowed, -INF) / 0.7
            hidden = t5.decode(tsqa.shift_right(y), t5.encode(ids, mask, marks), mask)
            value = w.policy["value"](hidden)[0, :, 0]
        want = logits.log_softmax(-1).gather(2, y[:, :, None])[0, :, 0]
        assert torch.allclose(t["logp"][b, :n], want, atol=1e-5) and not t["logp"][b, n:].any()
        assert torch.allclose(t["values"][b, :n], value, atol=1e-4) and not t["values"][b, n:].any()
        p = torch.distributions.Categorical(logits=logits.clamp(min=-1e9)).entropy()[0]
        assert torch.allclose(t["entropy"][b, :n], p, atol=1e-4)


def test_time_marks_reach_the_policy(small):
    w = World(small, arguments())
    before = w.teacher()["logp"]
    w.rows = [(ids, [0] * len(ids)) for ids, _ in w.rows]
    assert (before - w.teacher()["logp"]).abs().max() > 1e-3


def test_forbidden_ids_are_never_sampled_and_have_no_probability(small, tokenizer):
    w = World(small, arguments("--samples", 4, "--num-rollouts", 48), n=12, ids=text_ids)
    t5 = w.policy["t5"]
    said = w.ids[w.mask]
    assert said.numel() > 200 and w.allowed[said].all() and not w.ids[~w.mask].any()
    source = tsqa.collate(w.rows[:1], "cpu")
    with torch.no_grad():
        logits, _ = ppo.forward(t5, source, w.ids[:1], w.allowed, w.args)
    assert torch.equal(torch.isinf(logits), (~w.allowed).expand_as(logits))


def test_sampled_frequencies_are_the_probabilities_that_are_scored(small):
    """Answers of one piece at most out of five ids: shares within four standard errors of exp(logp)."""
    args = arguments("--samples", 6000, "--num-rollouts", 6000, "--batch-size", 6000, "--temperature", 2.0)
    args.max_new_tokens = 1
    w = World(small, args, pairs=[("Who?", "Ann.")])
    w.allowed = torch.zeros_like(w.allowed)
    w.allowed[[1, 5, 60, 700, 1500]] = True
    w.ids = ppo.sample(w.policy["t5"], w.rows, w.allowed, args, ppo.generator("f"))
    w.mask = ppo.action_mask(w.ids)
    p = w.teacher()["logp"].exp()
    for i in (1, 5, 60, 700, 1500):
        at = w.ids[:, 0] == i
        assert at.any(), "an id was never drawn: too unlikely for this test"
        q = p[at][0].item()
        assert abs(at.float().mean().item() - q) < 4 * math.sqrt(q * (1 - q) / len(at))


def test_sampling_depends_on_its_own_stream_alone(small):
    a, b, c = (World(small, arguments(), seed=s).ids for s in (1, 1, 2))
    torch.manual_seed(5)
    assert torch.equal(a, b) and not torch.equal(a[:, :3], c[:, :3])
    args = arguments()
    for args.chunk_size in (1, 2):  # an answer does not depend on the others of its chunk
        assert torch.equal(World(small, args, seed=1).ids, a)


def test_value_head_starts_at_zero_and_is_float32(small):
    w = World(small, arguments("--dtype", "bfloat16"))
    head = w.policy["value"]
    assert not head.weight.any() and not head.bias.any() and head.weight.shape == (1, 24)
    assert not w.batch["values"].any() and w.batch["values"].dtype == torch.float32
    values = ppo.state_values(head, torch.ones(2, 3, 24, dtype=torch.bfloat16))
    assert values.dtype == torch.float32 and values.shape == (2, 3)


def test_reference_does_not_move(small):
    w = World(small, arguments())
    before = {k: v.clone() for k, v in w.ref.state_dict().items()}
    ref_logp = w.batch["ref_logp"]
    assert torch.equal(w.ref.time_embedding.weight, w.policy["t5"].time_embedding.weight)
    w.update(torch.optim.Adam(w.policy.parameters(), lr=1e-2))
    assert all(torch.equal(before[k], v) for k, v in w.ref.state_dict().items())
    assert torch.equal(w.teacher()["ref_logp"], ref_logp)
    moved = [k for k, v in w.policy["t5"].state_dict().items() if not torch.equal(before[k], v)]
    assert set(moved) == set(before)  # and everything in the policy did, the encoder and the time embedding too
    assert not any(p.requires_grad for p in w.ref.parameters())


def test_gradient_of_a_minibatch_does_not_depend_on_its_parts(small):
    grads = []
    for chunk in (1, 6):
        w = World(small, arguments())
        w.args.chunk_size = chunk
        figures = ppo.minibatch_gradients(w.policy, w.rows, [3, 0, 5, 1], w.batch, w.allowed, w.args)
        assert figures["ratio_mean"].item() == pytest.approx(1, abs=1e-5)  # a mean over these questions, not over all
        grads.append([p.grad for p in w.policy.parameters()] + [figures["vf_loss"], figures["ratio_max"]])
    assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(*grads, strict=True))


def test_updates_of_a_rollout_end_when_the_policy_has_moved_too_far(small):
    w = World(small, arguments("--stop-kl", 1e-3))
    before = []
    optimizer = torch.optim.Adam(w.policy.parameters(), lr=1e-2)
    optimizer.register_step_post_hook(lambda *_: before.append(w.policy["t5"].shared.weight.detach().clone()))
    steps = w.update(optimizer)
    assert 1 < len(steps) < 9 and len(before) == len(steps) - 1  # the last one made no step
    assert torch.equal(before[-1], w.policy["t5"].shared.weight)
    assert all(p.grad is None for p in w.policy.parameters())
    assert steps[-1]["approx_kl"] > 1e-3 >= max(s["approx_kl"] for s in steps[:-1])
    w.batch["advantages"].fill_(NAN)
    w.batch["logp"].fill_(NAN)
    assert len(w.update(optimizer)) == 1 and torch.equal(before[-1], w.policy["t5"].shared.weight)


def test_gradients_are_clipped(small):
    w = World(small, arguments("--clip", 1e-6))
    before = [p.detach().clone() for p in w.policy.parameters()]
    steps = w.update(torch.optim.SGD(w.policy.parameters(), lr=1.0))
    moved = math.sqrt(
        sum((p - q).double().pow(2).sum().item() for p, q in zip(w.policy.parameters(), before, strict=True))
    )
    assert 0 < moved < 1.1e-6 * len(steps) and steps[0]["grad_norm"] > 1e-3


def test_every_pass_has_a_new_order_of_whole_questions(small, monkeypatch):
    seen = []

    def spy(policy, rows, index, *_):
        seen.append(index)
        return {"approx_kl": torch.tensor(0.0)}

    monkeypatch.setattr(ppo, "minibatch_gradients", spy)
    w = World(small, arguments())
    for p in w.policy.parameters():
        p.grad = torch.zeros_like(p)
    w.update(torch.optim.SGD(w.policy.parameters(), lr=0.0))
    passes = [list(itertools.chain(*seen[i : i + 3])) for i in (0, 3, 6)]
    assert all(sorted(p) == list(range(6)) for p in passes) and len({tuple(p) for p in passes}) == 3


def test_draw_gives_passes_over_all_questions():
    drawn = [i for step in range(10) for i in ppo.draw(7, 3, step, 0)]
    assert all(sorted(drawn[i : i + 7]) == list(range(7)) for i in (0, 7, 14, 21))
    assert drawn[:7] != drawn[7:14] and drawn != [i for step in range(10) for i in ppo.draw(7, 3, step, 1)]
    assert sorted(ppo.draw(2, 6, 0, 0)) == [0, 0, 0, 1, 1, 1]  # more than there are


# ---- learning


@pytest.mark.parametrize(("samples", "answer"), [(1, 77), (4, 1200)])
def test_bandit(small, samples, answer):
    """Reward 1 if the first piece is `answer`, else 0: from about 1 in 100 allowed pieces to more than 0.9.

    The first action must be trained: a policy whose loss begins at the second one never learns this.
    """
    more = ("--samples", samples, "--num-rollouts", 64, "--batch-size", 32, "--chunk-size", 64, "--ppo-epochs", 4)
    args = arguments(*more, "--vf-coef", 0.1, "--max-new-tokens", 2)
    t5, tokenizer, tagger, _ = tsqa.load_run(small)
    allowed = torch.zeros(t5.config.vocab_size, dtype=torch.bool)
    allowed[torch.arange(EOS, 2000, 20)] = True
    allowed[answer] = True  # about 100 ids
    policy = nn.ModuleDict({"t5": t5, "value": ppo.value_head(24)}).eval()
    ref, optimizer = ppo.frozen_copy(t5), torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
    rows = tsqa.encode_sources(tokenizer, tagger, [("Who?", "Ann.")] * (64 // samples), 2, 512)
    share, start = [], time.time()
    for step in range(40):
        ids = ppo.sample(t5, rows, allowed, args, ppo.generator("bandit", step))
        batch = {"ids": ids, "mask": ppo.action_mask(ids)}
        batch |= ppo.teacher_forced(policy, ref, rows, ids, allowed, args)
        scores = (ids[:, 0] == answer).float()
        share.append(scores.mean().item())
        if share[-1] > 0.95:
            break
        rewards = ppo.kl_rewards(scores, batch["logp"], batch["ref_logp"], batch["mask"], 0.0)
        advantages, batch["returns"] = ppo.gae(rewards, batch["values"], batch["mask"], 1.0, 0.95)
        batch["advantages"] = ppo.masked_whiten(advantages, batch["mask"])
        ppo.update(policy, optimizer, rows, batch, allowed, args, ppo.generator("order", step))
    assert share[0] < 0.1 and share[-1] > 0.9, share
    assert time.time() - start < 60


# ---- the whole run


@pytest.fixture
def fake(monkeypatch):
    """A reward without embeddings: long answers score better; so the loop is tested without reward.py."""

    def reward(predictions, golds, negatives, ended):
        return torch.tensor([min(len(p), 40) / 20 - 1 if e else -2.0 for p, e in zip(predictions, ended, strict=True)])

    monkeypatch.setattr(ppo, "make_reward", lambda *_: reward)
    monkeypatch.setattr(ppo, "text_ids", few_ids)


def test_a_run_writes_what_it_should(small, tmp_path, fake, capsys):
    args = arguments("--ckpt", small, "--out", tmp_path / "run", "--window", 5)
    ppo.ppo(args)
    rows = metrics(args.out)
    rollouts, devs = [r for r in rows if "kl" in r], [r for r in rows if "dev_em" in r]
    assert [r["step"] for r in rollouts] == [1, 2, 3] and [r["step"] for r in devs] == [0, 2, 3]
    names = (
        "kl approx_kl clipfrac entropy explained_variance reward eos_rate length beta grad_norm ratio_mean ratio_max lr"
    )
    assert set(names.split()) | {f"share_{k}" for k in ppo.KINDS} | {f"reward_{k}" for k in ppo.KINDS} <= set(
        rollouts[0]
    )
    assert rollouts[0]["kl"] == 0 and rollouts[0]["explained_variance"] == 0 and rollouts[1]["kl"] != 0
    assert [r["lr"] for r in rollouts] == pytest.approx([1e-2, 1e-2 * 2 / 3, 1e-2 / 3])
    assert all(sum(r[f"share_{k}"] for k in ppo.KINDS) == pytest.approx(1, abs=1e-5) for r in rollouts)
    beta = [r["beta"] for r in rollouts]
    want = beta[0] * (1 + min(max(rollouts[0]["kl"] / args.target - 1, -0.2), 0.2) * 12 / args.horizon)
    assert beta[0] == 0.05 and beta[1] == pytest.approx(want, abs=1e-6) and beta[1] != beta[0]
    keys = set(tsqa.read_safetensors(tmp_path / "run" / "model.safetensors"))
    assert keys == set(tsqa.read_safetensors(small / "model.safetensors"))  # no value head in the model
    trainer = torch.load(tmp_path / "run" / "trainer.pt", weights_only=True)
    assert trainer["model"]["value.weight"].any() and trainer["best"]["beta"] != 0.05
    model, _, tagger, told = tsqa.load_run(args.out)
    assert model.config.time_window == 5 == told["window"] and tagger is not None and told["no_time"] is False
    assert "evaluate.py --ckpt" in capsys.readouterr().out


def test_the_loop_hands_the_update_what_it_should(small, tmp_path, fake, monkeypatch):
    """Which answers are learned from, their score and KL, returns before whitening, whitening over the rollout; all of it
    recomputed from the sampled ids."""
    seen, streams, drawn = [], [], []

    def spy(policy, optimizer, rows, batch, allowed, args, g):
        streams.append(g.initial_seed())
        lrs = [group["lr"] for group in optimizer.param_groups]
        seen.append(({k: v.clone() for k, v in batch.items()}, lrs, optimizer.param_groups[0]["eps"], rows))
        return update(policy, optimizer, rows, batch, allowed, args, g)

    def spy_too(t5, rows, allowed, args, g):
        streams.append(g.initial_seed())
        drawn.append((rows, ids := sample(t5, rows, allowed, args, g)))
        return ids

    update, sample = ppo.update, ppo.sample
    monkeypatch.setattr(ppo, "update", spy)
    monkeypatch.setattr(ppo, "sample", spy_too)
    args = arguments(
        "--ckpt", small, "--out", tmp_path / "run", "--value-lr", 0.02, "--gamma", 0.9, "--init-kl-coef", 0.5
    )
    ppo.ppo(args)
    rows, tokenizer = [r for r in metrics(args.out) if "kl" in r], Tokenizer(small)
    for step, (b, lrs, eps, asked) in enumerate(seen):
        sources, ids = drawn[step]
        ended = (ids == EOS).any(1).tolist()
        texts = [tokenizer.decode(row) for row in ids.tolist()]
        scores = torch.tensor([min(len(x), 40) / 20 - 1 if e else -2.0 for x, e in zip(texts, ended, strict=True)])
        assert rows[step]["reward"] == pytest.approx(scores.mean().item(), abs=1e-5) and 0 < sum(ended) < len(ended)
        kept = ppo.most_contrast(scores, args.samples, args.num_rollouts // args.samples)
        assert asked == [sources[i] for i in kept] and len(sources) == 4 * len(kept)
        groups = scores.view(-1, args.samples)[kept]
        assert torch.equal(b["ids"], ids.view(len(sources), args.samples, -1)[kept].flatten(0, 1))
        others = (groups.sum(1, keepdim=True) - groups) / (args.samples - 1)
        scores = (groups - others).view(-1)  # less the mean of the other answers to the question
        rewards = ppo.kl_rewards(scores, b["logp"], b["ref_logp"], b["mask"], rows[step]["beta"])
        advantages, returns = ppo.gae(rewards, b["values"], b["mask"], 0.9, 0.95)
        assert torch.allclose(b["returns"], returns, atol=1e-5)
        assert torch.allclose(b["advantages"], ppo.masked_whiten(advantages, b["mask"]), atol=1e-4)
        kl = ((b["logp"] - b["ref_logp"]) * b["mask"]).sum(1).mean().item()
        assert rows[step]["kl"] == pytest.approx(kl, abs=1e-5)
        assert lrs == pytest.approx([x * (1 - step / 3) for x in (1e-2, 1e-3, 2e-2)]) and eps == 1e-5
    assert len(set(streams)) == 2 * 3  # one to sample and one for the order in each rollout, and no two the same


def test_the_survey_rewards_the_vague_questions_of_traveler(small, tmp_path, fake, monkeypatch):
    seen, real = [], ppo.survey_scores

    def spy(scores, predictions, p):
        seen.append((predictions, p))
        return real(scores, predictions, p)

    monkeypatch.setattr(ppo, "survey_scores", spy)
    more = ("--data", "traveler", "--n-train", 12, "--n-dev", 2, "--iterations", 1)
    args = arguments("--ckpt", small, "--out", tmp_path / "run", *more)
    ppo.ppo(args)
    ((predictions, p),) = seen
    train = {ex.p for ex in ppo.load_bench("traveler", n=12, split="train", seed=f"ppo {args.seed}")}
    assert len(predictions) == len(p) and set(p) == train and None in train and len(train) > 2
    assert all(p[i] == p[i - i % args.samples] for i in range(len(p)))  # one question has one p


def test_best_dev_weights_are_kept_the_first_ones_too(small, tmp_path, fake, monkeypatch):
    for name, ems, best in (("a", [50.0, 30.0, 40.0], 0), ("b", [10.0, 60.0, 40.0], 1)):
        scores, seen = iter(ems), []

        def judge(model, *_, scores=scores, seen=seen):
            seen.append({k: v.clone() for k, v in model.state_dict().items()})
            return {"em": next(scores), "f1": 0.0, "empty": 0.0}

        monkeypatch.setattr(ppo, "evaluate_dev", judge)
        ppo.ppo(arguments("--ckpt", small, "--out", tmp_path / name))
        kept = tsqa.T5.from_pretrained(tmp_path / name).state_dict()
        assert all(torch.equal(kept[k], seen[best][k]) for k in kept)
        assert not torch.equal(seen[0]["shared.weight"], seen[1]["shared.weight"])


@pytest.mark.parametrize("stop", [1, 2])
def test_resume_gives_the_run_that_was_never_interrupted(small, tmp_path, fake, monkeypatch, stop):
    more = ("--ckpt", small, "--save-minutes", 0)
    ppo.ppo(arguments(*more, "--out", tmp_path / "whole"))
    save = ppo.save_trainer

    def save_then_stop(out, model, optimizer, step, best):
        save(out, model, optimizer, step, best)
        if step == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(ppo, "save_trainer", save_then_stop)
    with pytest.raises(KeyboardInterrupt):
        ppo.ppo(arguments(*more, "--out", tmp_path / "cut"))
    monkeypatch.setattr(ppo, "save_trainer", save)
    torch.manual_seed(99)  # whatever the process did before
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as f:
        f.write(json.dumps({"step": stop + 1, "kl": 7}) + "\n")  # a line after the last state
    ppo.ppo(arguments(*more, "--out", tmp_path / "cut", "--resume"))
    whole, cut = (torch.load(tmp_path / name / "trainer.pt", weights_only=True) for name in ("whole", "cut"))
    assert whole["model"].keys() == cut["model"].keys() and "value.bias" in cut["model"]
    assert all(torch.equal(whole["model"][k], cut["model"][k]) for k in whole["model"])
    for i, s in whole["optimizer"]["state"].items():
        assert all(torch.equal(s[k], cut["optimizer"]["state"][i][k]) for k in s)
    assert whole["best"] == cut["best"] and whole["step"] == cut["step"] == 3
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "cut")
    for name in ("model.safetensors", "config.json", "spiece.model"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def test_same_seed_same_run_other_seed_other_run(small, tmp_path, fake):
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        ppo.ppo(arguments("--ckpt", small, "--out", tmp_path / name, "--seed", seed, "--iterations", 2))
        runs.append(metrics(tmp_path / name))
    assert runs[0] == runs[1] != runs[2]


def test_a_run_whose_kl_runs_away_stops_and_keeps_its_best(small, tmp_path, fake, capsys):
    args = arguments("--ckpt", small, "--out", tmp_path / "run", "--iterations", 50, "--lr", 0.1, "--max-kl", 0.5)
    ppo.ppo(args)
    rows = [r for r in metrics(args.out) if "kl" in r]
    assert len(rows) < 50 and rows[-1]["stopped"] == "kl" and rows[-1]["kl"] > 0.5 >= rows[-2]["kl"]
    assert "is above 0.5" in capsys.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").read_bytes()


def test_interrupting_says_how_to_go_on(small, tmp_path, fake, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ppo, "update", stop)
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--ckpt", "my sft", "--overwrite"])
    with pytest.raises(KeyboardInterrupt):
        ppo.ppo(arguments("--ckpt", small, "--out", tmp_path / "run"))
    err = capsys.readouterr().err
    assert "interrupted at rollout 0 of 3; go on with: python ppo.py --ckpt 'my sft' --resume" in err


def test_what_is_not_given_comes_from_the_checkpoint(small):
    config = SimpleNamespace(time_window=4)
    told = {"data": "timeqa-easy", "data_dir": "d", "setting": "reason", "tagger": "ner", "no_time": True, "window": 4}
    args = ppo.parse_args([])
    ppo.inherit(args, told, config)
    assert (args.data, args.data_dir, args.setting, args.tagger) == ("timeqa-easy", "d", "reason", "ner")
    assert args.no_time and args.window == 4 and args.n_train is None and args.n_dev is None
    args = ppo.parse_args(["--data", "mini", "--window", "0", "--tagger", "rules"])
    ppo.inherit(args, told, config)
    assert (args.data, args.setting, args.window, args.tagger, args.n_train) == ("mini", "mix", 0, "rules", 6000)
    args = ppo.parse_args(["--setting", "obqa"])
    ppo.inherit(args, {}, config)
    assert (args.data, args.setting, args.tagger, args.no_time) == ("mini", "obqa", "rules", False)


def test_paper_sets_table_6_and_flags_win():
    a = ppo.parse_args(["--paper"])
    got = (a.num_rollouts, a.chunk_size, a.ppo_epochs, a.init_kl_coef, a.target, a.horizon, a.gamma, a.lam, a.cliprange)
    assert got == (256, 12, 4, 0.05, 6, 10000, 0.99, 0.95, 0.2)
    assert (a.vf_coef, a.batch_size, a.epochs, a.iterations, a.window, a.tagger) == (1, 16, 10, None, 10, "ner")
    a = ppo.parse_args(["--paper", "--gamma", "0.5", "--iterations", "7"])
    assert (a.gamma, a.iterations) == (0.5, 7)
    assert ppo.parse_args([]).iterations == 15 and ppo.parse_args(["--epochs", "2"]).iterations is None


# ---- command line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "python tsqa.py --stage sft"),
        (["--ckpt", "SMALL", "--out", "SMALL"], "is the checkpoint itself"),
        (["--gamma", "1.5"], "from 0 to 1"),
        (["--lr", "nan"], "expected a number"),
        (["--samples", "3"], "--num-rollouts 256 must be a multiple of --samples 3"),
        (["--horizon", "50"], "--horizon 50 is too short"),
        (["--reward", "bleu"], "invalid choice"),
        (["--ckpt", "SMALL", "--resume"], "start the run without --resume"),
    ],
)
def test_cli_wrong_use_is_one_sentence_and_status_2(small, tmp_path, monkeypatch, capsys, args, message):
    args = [str(small) if a == "SMALL" else a for a in args]
    if "--out" not in args:
        args += ["--out", str(tmp_path / "run")]
    before = (small / "model.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        data.run(lambda: ppo.main(args))
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert (small / "model.safetensors").read_bytes() == before


def test_another_run_is_not_overwritten(small, tmp_path, fake):
    more = ("--ckpt", small, "--out", tmp_path / "run", "--iterations", 1)
    ppo.ppo(arguments(*more))
    with pytest.raises(UserError, match=r"another run \(seed 0 -> 3\).*--overwrite"):
        ppo.ppo(arguments(*more, "--seed", 3))
    ppo.ppo(arguments(*more, "--seed", 3, "--overwrite"))


@pytest.mark.parametrize("flags", [[], ["--reward", "em", "--negatives", "remote", "--no-time", "--samples", "1"]])
def test_the_script_itself(small, tmp_path, flags):
    """The real reward on the real data, as a person runs it; and what it wrote is a model that answers."""
    base = "--num-rollouts 8 --samples 2 --batch-size 4 --iterations 2 --n-train 12 --n-dev 4 --max-new-tokens 4"
    command = [sys.executable, ROOT / "ppo.py", "--ckpt", small, "--out", tmp_path / "run", *base.split(), *flags]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best dev EM" in done.stdout and "rollout 2: dev EM" in done.stderr
    rows = [r for r in metrics(tmp_path / "run") if "kl" in r]
    assert len(rows) == 2 and rows[0]["share_truncated"] > 0 and rows[0]["reward_truncated"] == -2
    model, tokenizer, tagger, told = tsqa.load_run(tmp_path / "run")
    assert told["no_time"] == ("--no-time" in flags) == (tagger is None)
    assert isinstance(tsqa.answer(model, tokenizer, tagger, "Who?", "Ann Lee plays for Acme."), str)


def test_copies_are_the_answers_to_repeated_sources(small):
    """One pass of the encoder for all answers to a question gives what the question written k times gives."""
    w = World(small, arguments())
    t5, source = w.policy["t5"], tsqa.collate(w.rows[:3], "cpu")
    uniform = torch.rand(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    how = {"max_new_tokens": 6, "do_sample": True, "uniform": uniform, "allowed": w.allowed}  # some end before others
    repeated = t5.generate(*[x.repeat_interleave(4, 0) for x in source], **how)
    assert repeated.shape[0] == 12 and len(set(map(tuple, repeated.tolist()))) > 6
    assert torch.equal(t5.generate(*source, copies=4, **how), repeated)


def test_queries_learn_at_their_own_rate(small, tmp_path, fake, monkeypatch):
    """At the full rate AdamW moves the tiny queries of T5 by many times their size: what SFT spares, PPO must not lose."""
    seen, adam = [], torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda groups, **more: seen.append(adam(groups, **more)) or seen[0])
    ppo.ppo(
        arguments("--ckpt", small, "--out", tmp_path / "run", "--iterations", 1, "--q-rate", 0.25, "--value-lr", 0.5)
    )
    shape = {group["lr"]: {p.shape for p in group["params"]} for group in seen[0].param_groups}
    assert set(shape) == {1e-2, 0.25 * 1e-2, 0.5} and len(shape[0.25 * 1e-2]) == 1 and len(shape[0.5]) == 2
    assert sum(len(group["params"]) for group in seen[0].param_groups if group["lr"] == 0.25 * 1e-2) > 2
    assert arguments("--paper").q_rate == 1.0
