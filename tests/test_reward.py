"""Equations (7) and (8) by hand, the answer encoder, both rewards, the command."""

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import data
import reward
from reward import AnswerEncoder, TripletReward, em_reward, triplet
from tsqa import T5, T5Config, model_dir


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=4, dropout_rate=0.1)
    model = T5(T5Config(**sizes))
    model.time_embedding.weight.data.normal_()  # as after training
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return data.Tokenizer(model_dir("tiny"))


def test_equation_8():
    T = torch.tensor([0.0, 0.25, math.log(3), 1.5, 500.0, math.inf], dtype=torch.float64)
    by_hand = [4 * 2 / (1 + math.exp(t) + 1e-6) - 2 if t < 100 else -2.0 for t in T.tolist()]
    assert reward.reward(T).tolist() == pytest.approx(by_hand, abs=1e-12)
    assert reward.reward(torch.tensor(0.0)).item() == pytest.approx(2, abs=3e-6)
    assert reward.reward(torch.tensor(1e4)).item() == -2  # and no NaN in float32


def test_equation_7_by_hand():
    gt = torch.tensor([[[0.0, 0.0], [9.0, 0.0]]])  # two accepted answers
    pred, neg = torch.tensor([[3.0, 4.0]]), torch.tensor([[[3.0, 4.0], [3.0, 0.0], [100.0, 4.0]]])
    # d(gt, p) = min(5, sqrt(36 + 16)) = 5; d(p, n) = 0, 4, 97; margin 1
    assert triplet(gt, pred, neg, 1.0).item() == pytest.approx((6 + 2 + 0) / 3)
    assert triplet(gt, pred, neg, 1.0, "max").item() == 6 and triplet(gt, pred, neg, 1.0, "min").item() == 0
    assert triplet(gt[0, 0], pred[0], neg[0, 0], 1.0).item() == 6  # plain vectors
    assert triplet(gt, pred, neg[:, :0], 1.0).item() == 5  # no negatives


def test_triplet_against_loops_with_ragged_rows():
    g = torch.Generator().manual_seed(0)
    gt, pred, neg = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((5, 3, 8), (5, 8), (5, 4, 8)))
    golds, negs = [1, 2, 3, 1, 2], [4, 0, 2, 1, 3]
    for i in range(5):
        gt[i, golds[i] :], neg[i, negs[i] :] = torch.nan, torch.nan
    for how, join in (("mean", lambda t: sum(t) / len(t)), ("max", max), ("min", min)):
        for i, T in enumerate(triplet(gt, pred, neg, 0.7, how).tolist()):
            near = min(math.dist(gt[i, k], pred[i]) for k in range(golds[i]))
            terms = [max(near - math.dist(neg[i, k], pred[i]) + 0.7, 0) for k in range(negs[i])]
            assert T == pytest.approx(join(terms) if terms else near)
    pred[0, 0] = torch.nan
    assert triplet(gt, pred, neg, 0.7)[0].isnan()  # pads are ignored, a broken prediction is not


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(model, tokenizer):
    texts = ["Zell", "", "Member of the 17th Parliament of Kelland", "Zell F.C.", "x" * 300]
    center = ["Ann Lee", "Zell", "Zell"]
    together = AnswerEncoder(model, tokenizer, center)(texts)
    for encoder in (AnswerEncoder(model, tokenizer, center), AnswerEncoder(model, tokenizer, center, batch_size=1)):
        alone = torch.cat([encoder([text]) for text in texts])
        assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=1), torch.ones(5)) and together.isfinite().all()


def test_pooling_by_hand(model, tokenizer):
    """Mean over the pieces without EOS, minus the mean of the training answers (doubled ones count twice)."""
    model.eval()

    def mean(text):
        ids = tokenizer.encode(text)
        h = model.encode(torch.tensor([ids]), torch.ones(1, len(ids)), torch.zeros(1, len(ids)))[0].detach()
        return h[: max(1, len(ids) - 1)].mean(0)

    center = (mean("Ann Lee") + 2 * mean("Zell")) / 3
    encoder = AnswerEncoder(model, tokenizer, ["Ann Lee", "Zell", "Zell"])
    for text in ("Bob Ray F.C.", ""):
        v = mean(text) - center
        assert torch.allclose(encoder([text])[0], v / v.norm(), atol=1e-5)
    plain = mean("Bob Ray")
    assert torch.allclose(AnswerEncoder(model, tokenizer)(["Bob Ray"])[0], plain / plain.norm(), atol=1e-5)


def test_frozen_and_cached(model, tokenizer, monkeypatch):
    encoder = AnswerEncoder(model.train(), tokenizer)
    before = encoder(["Ann Lee", "Zell"])
    old = model.shared.weight.data.clone()
    model.shared.weight.data.add_(1.0)  # the policy learns on
    encoder.cache.clear()
    assert torch.equal(encoder(["Ann Lee", "Zell"]), before) and not before.requires_grad
    model.shared.weight.data.copy_(old)
    assert model.training and model.shared.weight.requires_grad
    calls, pooled = [], encoder.pooled
    monkeypatch.setattr(encoder, "pooled", lambda texts: calls.append(texts) or pooled(texts))
    assert torch.equal(encoder(["Zell", "Bob", "Bob", "Zell"])[0], before[1]) and calls == [["Bob"]]
    encoder.cache_size = 3
    encoder(["Bob", "Cy", "Ann Lee"])  # does not fit: starts anew
    assert set(encoder.cache) == {"Bob", "Cy", "Ann Lee"}


def test_triplet_reward(model, tokenizer):
    encoder = AnswerEncoder(model, tokenizer, ["Ann Lee", "Zell"])
    score = TripletReward(encoder, margin=0.5)
    golds, negs = [["Ann Lee", "Zell"], ["Bob Ray"], [""]], [["Cy Fox", "Di Gow"], [], ["Cy Fox"]]
    right, wrong = score(["Zell", "Bob Ray", ""], golds, negs), score(["Cy Fox", "Cy Fox", "Cy Fox"], golds, negs)
    assert right.shape == (3,) and (right > wrong).all() and torch.allclose(right[1:], torch.tensor(2.0), atol=1e-4)
    v = dict(
        zip(("Ann Lee", "Zell", "Cy Fox", "Di Gow"), encoder(["Ann Lee", "Zell", "Cy Fox", "Di Gow"]), strict=True)
    )
    near = min((v["Ann Lee"] - v["Cy Fox"]).norm(), (v["Zell"] - v["Cy Fox"]).norm())
    T = (max(near + 0.5, 0) + max(near - (v["Cy Fox"] - v["Di Gow"]).norm() + 0.5, 0)) / 2
    assert wrong[0].item() == pytest.approx(reward.reward(T).item(), abs=1e-4)
    cut = score(["Zell", "Bob Ray", ""], golds, negs, ended=[True, False, torch.tensor(True)])
    assert cut[1] == -2 and torch.equal(cut[[0, 2]], right[[0, 2]])


def test_em_reward():
    golds, negs = [["the Zell F.C.", "Ann"]] * 3 + [[""], ["Ann"]], [["Bob", "Cy"]] * 4 + [[]]
    predictions = ["zell fc", "bob!", "Dan", "", "Bob"]
    assert em_reward(predictions, golds, negs).tolist() == [1, -1, -2, 1, -2]
    assert em_reward(predictions, golds, negs, torch.tensor([0, 1, 1, 1, 1])).tolist() == [-2, -1, -2, 1, -2]


@pytest.mark.parametrize(
    "text, other",
    [
        ("University of Zell", "Zell University"),
        ("Zell University", "the University of Zell"),
        ("Zell F.C.", "Zell FC"),
        ("Zell FC", "Zell F.C."),
        ("FC Zell", "Zell F.C."),
        ("Zell College", None),
        ("", None),
    ],
)
def test_alias_is_accepted_as_the_same_answer(text, other):
    assert reward.alias(text) == other
    assert other is None or data.same_answer(text, other)


def test_cases_and_measure():
    """A score that knows the truth separates perfectly; one that knows nothing does not."""
    rows = reward.cases(list(data.mini("train", n=200, seed=3)), 4)
    assert all({r["remote"], r["proximal"]} <= {*negs, None} and r["gold"] in golds for golds, negs, r in rows)
    assert all(r["unseen"] not in negs and r["unrelated"] not in golds for golds, negs, r in rows)
    truth = lambda ps, golds, negs: torch.tensor(
        [2.0 if data.same_answer(p, g[0]) else -1.0 for p, g in zip(ps, golds)]
    )
    perfect = reward.measure(truth, [row for row in rows if len(row[0]) == 1])
    assert (
        perfect["AUC gold, remote"] == "1.000" and perfect["gold >= 1.5"] == "100.0 %" and perfect["remote"] == "-1.00"
    )
    assert perfect["alias > remote"].startswith("100.0 %") and int(perfect["alias > remote"].split()[-1]) > 5
    assert reward.measure(lambda ps, g, n: torch.zeros(len(ps)), rows)["AUC gold, remote"] == "0.500"


def test_show_and_command(model, tokenizer, tmp_path, capsys, monkeypatch):
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    reward.main(["--model", str(tmp_path), "--show", "2", "--n", "30", "--setting", "obqa"])
    out = capsys.readouterr().out
    assert "\033" not in out and out.count("  remote") >= 2 and out.count("  proximal") >= 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    reward.main(["--model", str(tmp_path), "--show", "5", "--n", "30"])
    colours = capsys.readouterr().out
    assert all(f"\033[{code}m" in colours for code in (31, 33, 34))
    monkeypatch.setenv("NO_COLOR", "1")
    reward.main(["--model", str(tmp_path), "--show", "1", "--n", "30"])
    assert "\033" not in capsys.readouterr().out
    reward.main(["--model", str(tmp_path), "--n", "40", "--margins", "0.5"])
    assert capsys.readouterr().out.count("\n|") == 2 + 6


def test_show_paints_by_kind():
    ex = data.Example("q", "Who?", "Ann Lee met Bob and Cy.", ["Ann Lee"])
    text = reward.show(ex, ["Bob"], ["Cy"], lambda *_: torch.ones(1), colour=True)
    assert "\033[31mAnn Lee\033[0m met \033[34mBob\033[0m and \033[33mCy\033[0m." in text
