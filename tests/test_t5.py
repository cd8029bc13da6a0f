"""The T5 of tsqa.py against `transformers` (tests/fixtures, made by make_fixtures.py there), weights, decoding."""

import http.server
import json
import math
import pickle
import shutil
import struct
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tsqa
from data import UserError
from tsqa import T5, Attend, T5Config

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
KINDS = ("relu", "gated")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def load(kind):
    e = EXPECTED[kind]
    return T5.from_pretrained(FIXTURES / kind), *(torch.tensor(e[k]) for k in ("input_ids", "attention_mask", "labels"))


def close(a, b, atol=1e-5):
    assert a.shape == b.shape, (a.shape, b.shape)
    worst = (a - b).abs().max().item()
    assert worst <= atol, f"largest difference {worst:.3g}"


def tiny(**changes):
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 3}
    return T5(T5Config(**sizes | {"num_decoder_layers": 2} | changes)).eval()


def batch(B=3, S=9, T=5, V=40):
    mask = (torch.arange(S) < torch.randint(2, S, (B, 1))).long()
    return torch.randint(2, V, (B, S)), mask, torch.randint(2, V, (B, T))


# ---- against transformers


@pytest.mark.parametrize("kind", KINDS)
def test_parity(kind):
    model, ids, mask, labels = load(kind)
    e = EXPECTED[kind]
    logits, loss = model(ids, mask, labels)
    assert logits.dtype == torch.float32
    close(logits[:, :2], torch.tensor(e["logits"]), 1e-4)
    assert logits.double().sum().item() == pytest.approx(e["logits_sum"], abs=1e-2)
    assert logits.double().square().sum().item() == pytest.approx(e["logits_square"], rel=1e-5)
    assert loss.item() == pytest.approx(e["loss"], abs=1e-5)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(e["grad_norm"], rel=1e-4)
    close(model(ids, mask, decoder_input_ids=tsqa.shift_right(labels))[0], logits, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_beams_give_the_ids_of_transformers(kind):
    model, ids, mask, _ = load(kind)
    n = len(EXPECTED[kind]["greedy"][0])
    assert model.generate(ids, mask, max_new_tokens=n).tolist() == EXPECTED[kind]["greedy"]
    assert model.generate(ids, mask, max_new_tokens=n, num_beams=4).tolist() == EXPECTED[kind]["beam4"]
    for i in range(len(ids)):  # a row alone, without its pads
        alone = ids[i : i + 1, : mask[i].sum()]
        row = model.generate(alone, torch.ones_like(alone), max_new_tokens=n, num_beams=4)[0].tolist()
        want = EXPECTED[kind]["beam4"][i]
        assert row == want[: want.index(1) + 1 if 1 in want else n]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_weights_are_the_ones_transformers_wrote(kind, tmp_path):
    """make_fixtures.py let `transformers` load what we write: the logits were equal within `saved_by_us`."""
    assert EXPECTED[kind]["saved_by_us"] <= 1e-5
    load(kind)[0].save_pretrained(tmp_path)
    ours, theirs = tsqa.read_weights(tmp_path), tsqa.read_weights(FIXTURES / kind)
    assert all(torch.equal(ours[name], x) for name, x in theirs.items())


# ---- model


def test_relative_buckets():
    encoder = {-200: 15, -128: 15, -64: 14, -20: 10, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 20: 26, 64: 30}
    encoder |= {128: 31, 4000: 31}
    decoder = {5: 0, 0: 0, -1: 1, -15: 15, -16: 16, -31: 21, -64: 26, -112: 30, -113: 31, -500: 31}
    for golden, both in ((encoder, True), (decoder, False)):
        assert tsqa.relative_bucket(torch.tensor(list(golden)), both, 32, 128).tolist() == list(golden.values())


def test_position_bias_of_the_last_rows_and_causality_in_it():
    model = tiny()
    for stack in (model.encoder, model.decoder):
        full = stack.position_bias(7, 7, "cpu")
        close(stack.position_bias(2, 7, "cpu"), full[:, :, 5:], 0)
        assert full.is_contiguous()  # else each sum with it takes ten times as long
    future = torch.ones(7, 7).triu(1).bool()
    assert (full[0, :, future] == tsqa.MASKED).all() and (full[0, :, ~future].abs() < 100).all()


@pytest.mark.parametrize("kind", KINDS)
def test_right_padding_changes_nothing(kind):
    model, ids, mask, labels = load(kind)
    marks = (torch.rand(ids.shape) < 0.5).long()
    model.time_embedding.weight.data.normal_()
    garbage = torch.where(mask.bool(), ids, torch.randint_like(ids, 2, 100))
    longer, wide = F.pad(garbage, (0, 50), value=7), F.pad(mask, (0, 50))
    for run in (lambda i, m, t: model.encode(i, m, t)[:, : ids.shape[1]] * mask[:, :, None],
                       lambda i, m, t: model(i, m, labels, t)[0]):  # fmt: skip
        want = run(ids, mask, marks)
        close(run(garbage, mask, marks), want)
        close(run(longer, wide, F.pad(marks, (0, 50), value=1)), want)
        close(run(garbage, mask.bool(), marks.bool()), want)
    for beams in (1, 4):
        want = model.generate(ids, mask, marks, num_beams=beams)
        assert torch.equal(model.generate(longer, wide, F.pad(marks, (0, 50)), num_beams=beams), want)


def test_row_of_nothing_but_pads_is_finite_and_leaves_the_others_alone():
    model, (ids, mask, labels) = tiny(), batch()
    want = model(ids, mask, labels)[0][1:]
    mask[0] = 0
    logits, loss = model(ids, mask, labels)
    loss.backward()
    close(logits[1:], want)
    assert logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert torch.tensor(tsqa.MASKED, dtype=torch.float16).isfinite()
    assert model.generate(ids, mask, num_beams=2).shape[0] == len(ids)


def test_decoder_is_causal():
    model, (ids, mask, labels) = tiny(), batch(T=6)
    before = model(ids, mask, labels)[0]
    labels[:, 3] = (labels[:, 3] + 1) % 40
    after = model(ids, mask, labels)[0]
    close(after[:, :4], before[:, :4], 1e-6)
    assert (after[:, 4:] - before[:, 4:]).abs().max() > 1e-3


def test_shift_right_and_ignored_labels():
    labels = torch.tensor([[5, 6, 1, -100], [1, -100, -100, -100], [7, 8, 9, 9]])
    assert tsqa.shift_right(labels).tolist() == [[0, 5, 6, 1], [0, 1, 0, 0], [0, 7, 8, 9]]
    assert labels[0, 3] == -100
    model, (ids, mask, _) = tiny(), batch()
    logits, loss = model(ids, mask, labels)
    logp = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[:, :, None])[:, :, 0]
    assert loss.item() == pytest.approx(-logp[labels >= 0].mean().item(), abs=1e-6)
    with pytest.raises(AssertionError, match="labels"):
        model(ids, mask)


@pytest.mark.parametrize("rows", (1, 2, 5))
@pytest.mark.parametrize("masked", (True, False))
def test_attend_equals_the_plain_formula(monkeypatch, rows, masked):
    monkeypatch.setattr(Attend, "rows", staticmethod(lambda q, k: rows))
    B, H, T, S, d = 5, 3, 4, 7, 6
    q, k, v, bias = torch.randn(B, H, T, d), torch.randn(B, H, S, d), torch.randn(B, H, S, d), torch.randn(1, H, T, S)
    mask = tsqa.padding_bias((torch.arange(S) < torch.tensor([7, 3, 1, 5, 6])[:, None]).long()) if masked else None
    up, results = torch.randn(B, H, T, d), []
    for attend in (Attend.apply, tsqa.attend_plain):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
        out = attend(*leaves, mask)
        out.backward(up)
        results.append([out.detach()] + [x.grad for x in leaves])
    for a, b in zip(*results, strict=True):
        close(a, b)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) + bias + (0 if mask is None else mask)  # not divided by sqrt(d)
    close(results[0][0], scores.softmax(-1) @ v)
    zero = torch.zeros(1, 1, 1, 1)
    close(Attend.apply(q, k, v, zero, mask), tsqa.attend_plain(q, k, v, zero, mask))


def test_time_embedding_starts_at_zero_and_learns():
    model, (ids, mask, labels) = tiny(), batch()
    marks = torch.randint(0, 2, ids.shape)
    plain = model(ids, mask, labels)[0]
    logits, loss = model(ids, mask, labels, marks)
    close(logits, plain, 0)
    loss.backward()
    grad = model.time_embedding.weight.grad
    assert (grad.abs().max(1).values > 1e-6).all(), "both rows must learn"
    torch.optim.SGD([model.time_embedding.weight], lr=1.0).step()
    moved = model(ids, mask, labels, marks)[0]
    assert (moved - plain).abs().max() > 1e-3
    close(model(ids, mask, labels)[0], plain, 0)
    rows = model.time_embedding.weight[marks]  # added to the encoder's input, nowhere else
    model.shared.register_forward_hook(lambda _, args, out: out + rows if args[0] is ids else None)
    close(model(ids, mask, labels)[0], moved, 1e-6)


def test_dropout_in_all_its_places_and_only_in_training(monkeypatch):
    model, (ids, mask, labels) = tiny(num_layers=3, dropout_rate=0.25), batch()
    close(model(ids, mask, labels)[0], model(ids, mask, labels)[0], 0)
    calls, real = [], F.dropout

    def count(x, p=0.5, training=True, inplace=False):
        calls.append((p, training))
        return real(x, p, training)

    monkeypatch.setattr(F, "dropout", count)
    model.train()
    one, two = model(ids, mask, labels)[0], model(ids, mask, labels)[0]
    assert (one - two).abs().max() > 1e-2
    # a stack: embedding and final norm; a block: attention weights, attention output, inside and after the feed-forward
    assert calls == [(0.25, True)] * 2 * (2 + 3 * 4 + 2 + 2 * 6)
    calls.clear()
    answer = model.generate(ids, mask)
    assert not any(p and on for p, on in calls) and model.training and model.decoder.blocks[0].training
    assert torch.equal(answer, model.eval().generate(ids, mask)) and not model.training


def test_without_dropout_training_mode_is_the_same_function():
    model, (ids, mask, labels) = tiny(dropout_rate=0.0), batch()
    close(model.train()(ids, mask, labels)[0], model.eval()(ids, mask, labels)[0], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_initialisation(kind):
    c = T5Config(vocab_size=300, d_model=96, d_kv=16, d_ff=200, num_layers=3, num_decoder_layers=2, num_heads=5)
    c.feed_forward_proj, c.tie_word_embeddings = ("relu", True) if kind == "relu" else ("gated-gelu", False)
    model = T5(c)
    want = {
        "q": (96 * 16) ** -0.5,
        "k": 96**-0.5,
        "v": 96**-0.5,
        "o": (5 * 16) ** -0.5,
        "wi": 96**-0.5,
        "wo": 200**-0.5,
    }
    want |= {"wi_0": 96**-0.5, "wi_1": 96**-0.5, "rel_bias": 96**-0.5, "shared": 1.0, "lm_head": 1.0}
    for name, p in model.named_parameters():
        part = name.split(".")[-2]
        if "norm" in part:
            assert (p == 1).all(), name
        elif part == "time_embedding":
            assert (p == 0).all()
        else:
            assert p.std().item() == pytest.approx(want[part], rel=0.2 if part == "rel_bias" else 0.05), name
            assert abs(p.mean().item()) < 5 * want[part] / p.numel() ** 0.5, name
    assert hasattr(model, "lm_head") == (kind == "gated")


def test_default_sizes():
    c = tsqa.read_config(ROOT / "assets" / "tiny-t5" / "config.json")
    assert c == T5Config(max_source=1024, dropout_rate=0.0)
    assert c.vocab_size >= 2048 + 100 and c.vocab_size % 64 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_logits_float32_and_near(kind):
    model, ids, mask, labels = load(kind)
    want, loss = model(ids, mask, labels)
    with torch.autocast("cpu", torch.bfloat16):
        logits, low = model(ids, mask, labels)
        answer = model.generate(ids, mask, max_new_tokens=6)
        model.generate(ids, mask, max_new_tokens=6, num_beams=2)
        again = model(ids, mask, labels)[1]  # weights cast without gradient by `generate` must not be reused here
    assert logits.dtype == low.dtype == torch.float32 and answer.shape == (len(ids), 6)
    assert low.item() == pytest.approx(loss.item(), abs=0.1) and (logits - want).abs().mean() < 0.05
    again.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "time" not in n)


# ---- decoding


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_equal_the_full_forward(kind):
    model, ids, mask, labels = load(kind)
    labels = torch.randint(2, 100, (len(ids), 40))  # beyond the exact buckets
    full = model(ids, mask, labels)[0]
    start = tsqa.shift_right(labels)
    with torch.no_grad():
        state = model.start(ids, mask, None, 40)
        for t in range(40):
            close(model.step(start[:, t], t, state), full[:, t])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", (1, 3))
def test_answers_end_in_eos_and_zeros(kind, beams):
    model, ids, mask, _ = load(kind)
    out = model.generate(ids, mask, num_beams=beams, max_new_tokens=11)
    assert out.dtype == torch.long and out.shape[0] == len(ids) and not out.requires_grad
    lengths = []
    for row in out.tolist():
        n = row.index(1) + 1 if 1 in row else len(row)
        assert n == 11 or 1 in row
        assert row[n:] == [0] * (len(row) - n)
        lengths.append(n)
    assert max(lengths) == out.shape[1] and len(set(lengths)) > 1
    order = torch.arange(len(ids)).flip(0)
    assert torch.equal(model.generate(ids[order], mask[order], num_beams=beams, max_new_tokens=11), out[order])


def test_greedy_takes_the_best_token_of_the_full_forward():
    model, ids, mask, _ = load("gated")
    out = model.generate(ids, mask, max_new_tokens=8)
    best = model(ids, mask, out)[0].argmax(-1)
    alive = (out == 1).cumsum(1) - (out == 1).long() == 0
    assert torch.equal(best[alive], out[alive])


def test_beams_find_at_least_what_greedy_finds():
    model, ids, mask, _ = load("relu")

    def score(out):
        logp = model(ids, mask, out)[0].log_softmax(-1).gather(2, out[:, :, None])[:, :, 0]
        alive = (out == 1).cumsum(1) - (out == 1).long() == 0
        return (logp * alive).sum(1) / alive.sum(1)

    wide = score(model.generate(ids, mask, num_beams=16, max_new_tokens=3))
    assert (wide >= score(model.generate(ids, mask, max_new_tokens=3)) - 1e-5).all()


def test_only_the_best_beams_may_end(monkeypatch):
    """EOS as the third of two beams is passed over, though its mean log-probability would win in the end."""
    first = torch.full((40,), 0.1 / 37)
    first[[2, 3, 1]] = torch.tensor([0.4, 0.35, 0.15])
    table = [first.log(), torch.zeros(40)]
    monkeypatch.setattr(T5, "step", lambda self, ids, t, state: table[t].expand(len(ids), -1))
    ids, mask, _ = batch()
    assert tiny().generate(ids, mask, max_new_tokens=2, num_beams=2)[:, 0].tolist() == [2, 2, 2]
    first[1] = 0.38  # now it is the second
    table[0] = first.log()
    assert tiny().generate(ids, mask, max_new_tokens=2, num_beams=2).tolist() == [[1], [1], [1]]


def test_finished_rows_cost_nothing(monkeypatch):
    model, ids, mask, _ = load("gated")
    sizes, real = [], T5.step
    monkeypatch.setattr(T5, "step", lambda self, x, t, state: sizes.append(len(x)) or real(self, x, t, state))
    out = model.generate(ids, mask, max_new_tokens=14)
    alive = (out == 1).cumsum(1) - (out == 1).long() == 0
    assert sizes == alive.sum(0).tolist() and sizes[-1] < sizes[0]
    sizes.clear()
    model.generate(ids, mask, max_new_tokens=14, num_beams=4)
    assert sizes[0] == 4 * len(ids) and sizes[-1] < sizes[0] and all(n % 4 == 0 for n in sizes)


def test_source_is_encoded_once(monkeypatch):
    model, ids, mask, _ = load("relu")
    calls = []
    for name in ("encode", "cross_keys"):
        real = getattr(model, name)
        monkeypatch.setattr(model, name, lambda *a, real=real, name=name: calls.append(name) or real(*a))
    model.generate(ids, mask)
    assert calls == ["encode"]  # and keys and values of the source are not made: `look_up`


def test_samples_follow_the_probabilities():
    model, n = tiny(vocab_size=5), 20000
    model.shared.weight.data *= 0.4  # flatter
    ids, T = torch.tensor([[2, 3, 4]]), 0.7
    mask = torch.ones_like(ids)
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    with torch.no_grad():
        logits = model(ids.expand(25, 3), mask.expand(25, 3), pairs)[0]
    logp = (logits / T).log_softmax(-1).gather(2, pairs[:, :, None])[:, :, 0]
    ends = pairs[:, 0] == 1  # EOS first: what follows is 0 for certain
    p = torch.where(ends, logp[:, 0].exp() * (pairs[:, 1] == 0), logp.sum(1).exp())
    out = model.generate(
        ids.expand(n, 3), mask.expand(n, 3), max_new_tokens=2, do_sample=True, temperature=T,
        uniform=torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
    )  # fmt: skip
    counts = torch.bincount(out[:, 0] * 5 + out[:, 1], minlength=25)
    assert p.sum().item() == pytest.approx(1, abs=1e-5) and (p > 0.01).sum() > 8
    assert ((counts / n - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-9).all(), (counts / n, p)


def test_sampling_is_repeatable_and_can_forbid_ids():
    model, ids, mask, _ = load("relu")
    a, b, c = (
        model.generate(
            ids,
            mask,
            max_new_tokens=32,
            do_sample=True,
            temperature=3.0,
            uniform=torch.rand(len(ids), 32, dtype=torch.float64, generator=torch.Generator().manual_seed(s)),
        )
        for s in (1, 1, 2)
    )
    assert torch.equal(a, b) and not torch.equal(a, c)
    allowed = torch.zeros(101, dtype=torch.bool)
    allowed[[1, 40, 41, 42]] = True
    for options in ({"do_sample": True, "temperature": 9.0}, {}, {"num_beams": 2}):
        out = model.generate(ids, mask, allowed=allowed, **options)
        assert set(out.flatten().tolist()) <= {0, 1, 40, 41, 42}
        alive = (out == 1).cumsum(1) - (out == 1).long() == 0
        assert (out[alive] != 0).all()
    for wrong in ({"num_beams": 2, "do_sample": True}, {"temperature": 0.0}, {"max_new_tokens": 0}):
        with pytest.raises(AssertionError):
            model.generate(ids, mask, **wrong)


# ---- weights


def same(a, b):
    b = dict(b.named_parameters())
    for name, p in a.named_parameters():
        assert p.dtype == torch.float32 and p.requires_grad and torch.equal(p, b.pop(name)), name
    assert not b


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_give_the_same_bits(kind, tmp_path):
    model = load(kind)[0]
    assert not model.training and (model.time_embedding.weight == 0).all()
    model.time_embedding.weight.data.normal_()
    model.save_pretrained(tmp_path / "new" / "run")
    again = T5.from_pretrained(str(tmp_path / "new" / "run"))
    assert again.config == model.config and not again.training
    same(again, model)
    assert sorted(p.name for p in (tmp_path / "new" / "run").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "new" / "run" / "config.json").read_text())
    theirs = json.loads((FIXTURES / kind / "config.json").read_text())
    written = {"architectures", "model_type", "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_layers"}
    for key in written | {"is_encoder_decoder", "tie_word_embeddings", "feed_forward_proj", "d_kv", "vocab_size"}:
        assert config.get(key) == theirs.get(key, key == "tie_word_embeddings"), key
    assert parts(tmp_path / "new" / "run" / "model.safetensors")[0]["__metadata__"] == {"format": "pt"}
    names = tsqa.read_safetensors(tmp_path / "new" / "run" / "model.safetensors").keys()
    assert names - {"time_embedding.weight"} == tsqa.read_weights(FIXTURES / kind).keys()
    model.save_pretrained(tmp_path / "half", torch.bfloat16)
    half = T5.from_pretrained(tmp_path / "half")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    same(half, model)


def test_pickled_weights_are_the_same_model():
    same(T5.from_pretrained(FIXTURES / "relu-bin"), T5.from_pretrained(FIXTURES / "relu"))


def test_sharded_pickles_and_whole_numbers_in_them(tmp_path):
    state = torch.load(FIXTURES / "relu-bin" / "pytorch_model.bin", weights_only=True)
    parts = {"pytorch_model-1.bin": list(state)[::2], "pytorch_model-2.bin": list(state)[1::2]}
    for file, names in parts.items():
        torch.save({name: state[name] for name in names}, tmp_path / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    shutil.copy(FIXTURES / "relu" / "config.json", tmp_path)
    same(T5.from_pretrained(tmp_path), T5.from_pretrained(FIXTURES / "relu"))
    state[NORM] = state[NORM].long()
    torch.save(state, tmp_path / "pytorch_model.bin")
    refuses(tmp_path, f"{NORM} is torch.int64")


def test_safetensors_of_all_types_at_any_offset(tmp_path):
    x = torch.randn(3, 5)
    body, entries = b"", {"__metadata__": {"format": "pt"}}
    for name, dtype in (("F16", torch.float16), ("F32", torch.float32), ("BF16", torch.bfloat16)):
        raw = x.to(dtype).view(torch.uint8).numpy().tobytes()
        entries[name] = {"dtype": name, "shape": [3, 5], "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    header = json.dumps(entries).encode()
    header += b" " * (1 - len(header) % 2)  # odd: nothing is aligned
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    got = tsqa.read_safetensors(tmp_path / "x.safetensors")
    assert got.keys() == {"F16", "F32", "BF16"}
    for tensor, dtype in zip(got.values(), (torch.float16, torch.float32, torch.bfloat16), strict=True):
        assert tensor.dtype == dtype and torch.equal(tensor, x.to(dtype))
        assert tensor.data_ptr() % 16 == 0, "memory of its own, aligned"


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    model = tiny()
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model.shared.weight.data.zero_()

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    monkeypatch.undo()
    with pytest.raises(UserError, match="cannot write"):
        model.save_pretrained(tmp_path / "config.json" / "run")


def test_bundled_model_without_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tsqa, "__file__", str(tmp_path / "tsqa.py"))
    monkeypatch.setattr(tsqa, "T5Config", lambda: tiny().config)
    assert not T5.from_pretrained("tiny").training
    assert "random" in capsys.readouterr().err
    saved = tiny()
    saved.save_pretrained(tmp_path / "assets" / "tiny-t5")
    monkeypatch.undo()
    monkeypatch.setattr(tsqa, "__file__", str(tmp_path / "tsqa.py"))
    same(T5.from_pretrained("tiny"), saved)
    assert capsys.readouterr().err == ""


def parts(path):
    """header and body of a safetensors file"""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def put(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


NORM = "encoder.block.1.layer.0.layer_norm.weight"
NORM2 = "encoder.block.0.layer.0.layer_norm.weight"


def edit(change):
    def damage(path):
        header, body = parts(path)
        body = change(header, body) or body
        put(path, header, body)

    return damage


def rename(header, body):
    header["extra.weight"] = header.pop(NORM)


def add(name, values):
    def change(header, body):
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(body), len(body) + len(raw)]}
        return body + raw

    return change


def entry(**changes):
    return edit(lambda header, body: header[NORM].update(changes))


def twice(path):
    header, body = parts(path)
    put(path, json.dumps(header).encode()[:-1] + f', "{NORM}": {json.dumps(header[NORM])}}}'.encode(), body)


DAMAGE = {
    "missing and left over": (edit(rename), rf"{NORM} is missing, extra.weight is left over"),
    "extra": (edit(add("extra.weight", [1.0])), "extra.weight is left over"),
    "shape": (entry(shape=[4, 4]), rf"{NORM} is torch.float32 of shape \[4, 4\].*\[16\]"),
    "alias with other values": (
        edit(add("encoder.embed_tokens.weight", [1.0])),
        "embed_tokens.weight and shared.weight",
    ),
    "tied output with other values": (edit(add("lm_head.weight", [1.0])), "lm_head.weight and shared.weight differ"),
    "twice": (twice, "twice"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-100]), "cut short"),
    "cut in the header": (lambda p: p.write_bytes(p.read_bytes()[:300]), "cut short"),
    "cut in the length": (lambda p: p.write_bytes(b"\x08\0\0"), "cut short"),
    "empty": (lambda p: p.write_bytes(b""), "cut short"),
    "beyond the file": (entry(data_offsets=[10**6, 10**6 + 64]), "cut short"),
    "huge tensor": (entry(shape=[10**12], data_offsets=[0, 4 * 10**12]), "cut short"),
    "size and shape": (entry(shape=[15]), "fit"),
    "overlap": (edit(lambda h, b: h[NORM].update(data_offsets=h[NORM2]["data_offsets"])), "overlap"),
    "negative": (entry(data_offsets=[-64, 0]), "whole numbers"),
    "boolean": (entry(shape=[True, 16]), "whole numbers"),
    "no offsets": (edit(lambda h, b: h[NORM].pop("data_offsets") and None), "header"),
    "offsets of the wrong kind": (entry(data_offsets=7), "header"),
    "type of the wrong kind": (entry(dtype=["F32"]), "header"),
    "integers": (entry(dtype="I64", shape=[8]), "is of type I64"),
    "huge header": (lambda p: p.write_bytes(struct.pack("<Q", 2**63) + p.read_bytes()[8:]), "header of 92233"),
    "header over 100 MB": (lambda p: sparse(p, 100_000_001), "header of 100000001"),
    "header no JSON": (lambda p: put(p, b"{'a': 1}", b""), "cannot read"),
    "header no object": (lambda p: put(p, b"[1]", b""), "header"),
    "header of deep lists": (lambda p: put(p, b"[" * 200000, b""), "cannot read"),
    "header no text": (lambda p: put(p, b"\xff\xfe\0\xff", b""), "cannot read"),
}


def sparse(path, n):
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", n))
        f.truncate(n + 100)


def refuses(directory, match):
    with pytest.raises(UserError, match=match) as e:
        T5.from_pretrained(directory)
    assert "\n" not in str(e.value) and Path(directory).name in str(e.value) and len(str(e.value)) < 1500


@pytest.mark.parametrize("name", DAMAGE)
def test_broken_weights_are_refused(name, tmp_path):
    shutil.copytree(FIXTURES / "relu", tmp_path / "m")
    damage, message = DAMAGE[name]
    damage(tmp_path / "m" / "model.safetensors")
    refuses(tmp_path / "m", message)


def test_aliases_of_the_embedding(tmp_path):
    shutil.copytree(FIXTURES / "relu", tmp_path / "m")
    path, want = tmp_path / "m" / "model.safetensors", T5.from_pretrained(FIXTURES / "relu")
    header, body = parts(path)
    span = header["shared.weight"]
    old = {"dtype": "F32", "shape": [32, 3], "data_offsets": [len(body), len(body) + 384]}
    for alias in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        only = {k: v for k, v in header.items() if k != "shared.weight"} | {alias: span}
        put(
            path,
            only | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": old},
            body + bytes(384),
        )
        same(T5.from_pretrained(tmp_path / "m"), want)
        copy = {**span, "data_offsets": [len(body), len(body) + len(want.shared.weight) * 64]}
        put(path, header | {alias: copy}, body + want.shared.weight.detach().numpy().tobytes())
        same(T5.from_pretrained(tmp_path / "m"), want)
    # an untied model must find its own output matrix
    config = json.loads((tmp_path / "m" / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    put(path, header, body)
    refuses(tmp_path / "m", "lm_head.weight is missing")
    put(path, {k: v for k, v in header.items() if k != "shared.weight"} | {"lm_head.weight": span}, body)
    refuses(tmp_path / "m", "shared.weight is missing")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("../m/model.safetensors", "weight_map"),
        ("/etc/passwd", "weight_map"),
        ("a/b.safetensors", "weight_map"),
        ("..", "weight_map"),
        ("", "weight_map"),
        ("a\\b.safetensors", "weight_map"),
        (3, "weight_map"),
        ("absent.safetensors", "absent.safetensors"),
    ],
)
def test_sharded_index_stays_in_its_directory(value, match, tmp_path):
    shutil.copytree(FIXTURES / "gated", tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["shared.weight"] = value
    path.write_text(json.dumps(index))
    refuses(tmp_path / "m", match)


def test_sharded_index_of_the_wrong_kind(tmp_path):
    shutil.copytree(FIXTURES / "gated", tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors.index.json"
    whole = json.loads(path.read_text())
    for text in ("[]", "{}", '{"weight_map": []}', "{", "\0"):
        path.write_text(text)
        refuses(tmp_path / "m", "index.json")
    shard = min(whole["weight_map"].values())
    shutil.copy(tmp_path / "m" / shard, tmp_path / "m" / "again.safetensors")
    path.write_text(json.dumps({"weight_map": whole["weight_map"] | {"x": "again.safetensors"}}))
    refuses(tmp_path / "m", "in another file")


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_pickle_that_would_run_code_is_refused(tmp_path):
    for i, save in enumerate((torch.save, lambda x, path: path.write_bytes(pickle.dumps(x)))):
        directory = tmp_path / f"m{i}"
        directory.mkdir()
        shutil.copy(FIXTURES / "relu" / "config.json", directory)
        save({"shared.weight": torch.zeros(2), "x": Evil(tmp_path / "owned")}, directory / "pytorch_model.bin")
        refuses(directory, "plain PyTorch tensors")
        assert not (tmp_path / "owned").exists()
    for content in (b"", b"garbage", (FIXTURES / "relu-bin" / "pytorch_model.bin").read_bytes()[:-999]):
        (directory / "pytorch_model.bin").write_bytes(content)
        refuses(directory, "plain PyTorch tensors")
    for wrong in ([torch.zeros(2)], {"a": 1}, {1: torch.zeros(2)}):
        torch.save(wrong, directory / "pytorch_model.bin")
        refuses(directory, "dictionary")


@pytest.mark.parametrize(
    ("key", "value"),
    [("d_model", None), ("vocab_size", None), ("d_kv", "64"), ("d_ff", 0), ("num_heads", True), ("num_layers", 2000)]
    + [("num_layers", -1), ("vocab_size", 10**15), ("num_decoder_layers", 2.0), ("dropout_rate", 1.5)]
    + [("dropout_rate", math.nan), ("layer_norm_epsilon", "x"), ("feed_forward_proj", "gated-silu"), ("d_model", [8])]
    + [("feed_forward_proj", ["relu"]), ("tie_word_embeddings", "no"), ("relative_attention_num_buckets", 2)]
    + [("relative_attention_max_distance", 16), ("model_type", "bert"), ("pad_token_id", 5), ("eos_token_id", 2)],
)
def test_broken_config_names_the_key(key, value, tmp_path):
    shutil.copytree(FIXTURES / "relu", tmp_path / "m")
    config = json.loads((FIXTURES / "relu" / "config.json").read_text()) | {key: value}
    if value is None:
        del config[key]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    refuses(tmp_path / "m", rf"config.json: {key} ")


def test_config_defaults(tmp_path):
    sizes = {"vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 9, "num_layers": 3, "num_heads": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sizes | {"new_key": [1], "num_decoder_layers": None, "pad_token_id": None}))
    c = tsqa.read_config(path)
    assert (c.num_decoder_layers, c.tie_word_embeddings, c.feed_forward_proj) == (3, True, "relu")
    assert (c.relative_attention_num_buckets, c.relative_attention_max_distance, c.dropout_rate) == (32, 128, 0.1)
    path.write_text(json.dumps(sizes | {"num_decoder_layers": 1, "tie_word_embeddings": False}))
    c = tsqa.read_config(path)
    assert (c.num_layers, c.num_decoder_layers, c.tie_word_embeddings) == (3, 1, False)
    for text in ("[]", "{", "\0", "[" * 100000):
        path.write_text(text)
        with pytest.raises(UserError, match=r"config\.json"):
            tsqa.read_config(path)


def test_no_model_there(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # where no name happens to be a directory
    (tmp_path / "m").mkdir()
    refuses(tmp_path / "m", "config.json")
    shutil.copy(FIXTURES / "relu" / "config.json", tmp_path / "m")
    refuses(tmp_path / "m", "holds no weights")
    for name in ("no/such/directory", "../x", "a/..", "./x", "/absent", "x", "a b/c", "https://a/b"):
        with pytest.raises(UserError, match="no such directory"):
            T5.from_pretrained(name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on 127.0.0.1 -> list of the paths asked for, function that stops it"""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            owner, name, _, _, file = self.path.strip("/").split("/")
            path = FIXTURES / name / file
            content = b"pieces" if file == "spiece.model" else path.read_bytes() if path.exists() else None
            if owner != "who" or content is None:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TSQA_HUB", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("TSQA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    stopped = []

    def stop():
        if not stopped:
            stopped.append(True)
            server.shutdown()
            server.server_close()

    yield asked, stop
    stop()


def test_models_from_the_hub(hub, tmp_path):
    asked, stop = hub
    for name in ("relu", "relu-bin", "gated"):
        same(T5.from_pretrained(f"who/{name}"), T5.from_pretrained(FIXTURES / name))
        directory = tsqa.model_dir(f"who/{name}")
        assert tmp_path in directory.parents and (directory / "spiece.model").read_bytes() == b"pieces"
    assert "/who/relu/resolve/main/model.safetensors" in asked
    assert not any("relu/" in path and ".bin" in path for path in asked), "one kind of weights is enough"
    with pytest.raises(UserError, match=r"who/absent/resolve/main/config\.json") as e:
        T5.from_pretrained("who/absent")
    assert "\n" not in str(e.value)
    shard = next((tsqa.model_dir("who/gated")).glob("*-00002-of*"))
    shard.unlink()  # as if interrupted
    same(T5.from_pretrained("who/gated"), T5.from_pretrained(FIXTURES / "gated"))
    stop()
    n = len(asked)
    same(T5.from_pretrained("who/gated"), T5.from_pretrained(FIXTURES / "gated"))  # offline, from the cache
    assert len(asked) == n
    with pytest.raises(UserError, match="who/other"):
        T5.from_pretrained("who/other")
