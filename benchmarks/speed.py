"""Speed and memory of tsqa beside transformers, CTranslate2 and the bare matrix products of the chip.

    pip install -r benchmarks/requirements.txt
    python benchmarks/speed.py                            # all rows and the scaling, an hour on two cores
    python benchmarks/speed.py --rows train-bf16 greedy   # some of them
    python benchmarks/speed.py --smoke --repeats 1        # does every row run? small models, figures mean nothing

Both sides have the same random weights, batch, dtype, threads and optimizer; rows of the batch differ in length by up to a
fifth. Their outputs are compared before anything is timed. The two are then run in turn, so that a slow minute of the
machine hits both. Peak memory is what a process of its own grows by, over what it holds before the model is made.
Do not run it on a busy machine.
"""

import argparse
import datetime
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import ppo
import reward
import tsqa
from data import EOS, PAD, TimeTagger, Tokenizer, mini
from evaluate import table, traveler_example, traveler_questions

SHAPES = {  # t5-small: the published sizes; tiny: the bundled model
    "t5-small": tsqa.T5Config(32128, 512, 64, 2048, 6, 6, 8, dropout_rate=0.0),
    "tiny": tsqa.T5Config(dropout_rate=0.0),
}
SIZES = {"train": (8, 512, 32), "tiny": (48, 200, 32), "greedy": (32, 512, 32)}  # rows, source pieces, target pieces


def config(shape, smoke):
    c = SHAPES[shape]
    return replace(c, d_model=64, d_ff=128, num_layers=1, num_decoder_layers=1, num_heads=2) if smoke else c


def sizes(name, smoke):
    return (4, 48, 6) if smoke else SIZES[name]


# ----------------------------------------------------------------------------------------------------------------------
# the two sides


def build(c, side, device):
    """`ours` or `theirs`, with the same random weights; EOS is never the best piece, so that every answer has full length,
    and embeddings are small, so that answers do not say one piece again and again."""
    torch.manual_seed(0)
    model = tsqa.T5(c)
    with torch.no_grad():
        model.shared.weight *= 0.1
        model.shared.weight[[PAD, EOS]] = 0.0
    if side == "theirs":
        import transformers

        transformers.logging.set_verbosity_error()
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            model = transformers.T5ForConditionalGeneration.from_pretrained(directory)
    return model.to(device).train()  # dropout is 0


def make_batch(c, B, S, T, device):
    """Source ids, their mask, time marks (B, S), and labels (B, T)"""
    g = torch.Generator().manual_seed(1)
    lengths = torch.cat([torch.tensor([S]), torch.randint(S - S // 5, S + 1, (B - 1,), generator=g)])
    mask = (torch.arange(S) < lengths[:, None]).long()
    ids = torch.randint(3, c.vocab_size, (B, S), generator=g) * mask
    ids[torch.arange(B), lengths - 1] = EOS
    marks = torch.randint(0, 2, (B, S), generator=g) * mask  # our side adds the temporal embedding, which is 0
    labels = torch.randint(3, c.vocab_size, (B, T), generator=g)
    return [x.to(device) for x in (ids, mask, marks, labels)]


def loss_of(model, batch):
    ids, mask, marks, labels = batch
    if isinstance(model, tsqa.T5):
        return model(ids, mask, labels, marks)[1]
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def train_step(model, optimizer, batch, dtype):
    with tsqa.autocast(batch[0].device, dtype):
        loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def adamw(model, lr=1e-4):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, fused=True)


# ----------------------------------------------------------------------------------------------------------------------
# measuring


def in_turn(functions, repeats):
    """{name: function} -> {name: seconds of each repeat}; all of them once before, to warm up."""
    seconds = {name: [] for name in functions}
    for i in range(repeats + 1):
        for name, f in functions.items():
            start = time.perf_counter()
            f()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if i:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def row(name, ours, theirs, goal, against, unit="ms"):
    """A line of the table from the figures of all repeats: median (least to most), ratio of the medians."""
    show = lambda x: f"{statistics.median(x):.4g} ({min(x):.4g} to {max(x):.4g})" if len(x) > 1 else f"{x[0]:.4g}"
    scale = 1e3 if unit == "ms" else 1
    ratio = statistics.median(ours) / statistics.median(theirs)
    told = {"ours": show([x * scale for x in ours]), "theirs": show([x * scale for x in theirs]), "unit": unit}
    told |= {"ratio": f"{ratio:.3f}", "goal": f"{goal:.2f}", "met": "yes" if ratio <= goal else "no"}
    return {"system": name, "against": against} | told


def point(side, shape, B, S, T, dtype, repeats, smoke, device):
    """One side alone, in this process -> {seconds: [...], mb: peak memory over what was there before the model}"""
    device = torch.device(device)
    if side == "theirs":
        import transformers  # noqa: F401, before the memory is read
    before = resident("VmRSS")
    c = config(shape, smoke)
    model, batch = build(c, side, device), make_batch(c, B, S, T, device)
    optimizer = adamw(model)
    reset_peak()
    seconds = in_turn({side: lambda: train_step(model, optimizer, batch, dtype)}, repeats)[side]
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else resident("VmHWM") - before
    return {"seconds": seconds, "mb": peak}


def resident(field):
    """MB of /proc/self/status: VmRSS now, VmHWM at the most"""
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) / 1024


def reset_peak():
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5")


def in_child(**arguments):
    """`point` in a process of its own; None where it found no room."""
    command = [sys.executable, __file__, "--point", json.dumps(arguments), "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def check(what, ours, theirs, bound):
    """The two sides agree, or there is nothing to time."""
    error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
    print(f"{what}: the two sides differ by {error:.1e} of their size", file=sys.stderr)
    if not error <= bound:
        sys.exit(f"{what}: that is more than {bound:g}; nothing was timed")


def same_answers(what, ours, theirs, n, bound):
    """At most `bound` of the first n pieces of all answers differ."""
    differ = (ours[:, :n] != theirs[:, :n]).float().mean().item()
    print(f"{what}: {differ:.1%} of the first {n} pieces differ, {len(ours.unique())} pieces occur", file=sys.stderr)
    if differ > bound:
        sys.exit(f"{what}: that is too many; nothing was timed")


# ----------------------------------------------------------------------------------------------------------------------
# rows


def gradients(model, batch, dtype):
    """loss, all gradients as one vector, in the order of the Hugging Face names"""
    with tsqa.autocast(batch[0].device, dtype):
        loss = loss_of(model, batch)
    loss.backward()
    grads = {tsqa.hf_name(name): p.grad for name, p in model.named_parameters()}  # hf_name leaves theirs alone
    # the start token's embedding is 0 here, and the norm multiplies its gradient, noise included, by eps ** -0.5
    grads["shared.weight"][PAD] = 0.0
    model.zero_grad()
    return loss.detach(), torch.cat([grads[name].flatten() for name in sorted(grads) if "time_emb" not in name])


def train(a, shape, size, dtype, goal, memory_goal=None):
    c, dims, device = config(shape, a.smoke), sizes(size, a.smoke), tsqa.pick_device(a.device)
    name = f"training step, {shape}, {dims[0]} x {dims[1]} in, {dims[2]} out, {dtype}"
    batch, models = make_batch(c, *dims, device), {side: build(c, side, device) for side in ("ours", "theirs")}
    (loss, grad), (their_loss, exact) = (gradients(model, batch, "float32") for model in models.values())
    check(f"{name}: loss, float32", loss, their_loss, 1e-5)
    check(f"{name}: gradient, float32", grad, exact, 1e-4)
    if dtype != "float32":  # 16 bits are noise of some percent on random weights: ours may not be the noisier side
        _, theirs = gradients(models["theirs"], batch, dtype)
        bound = 1.2 * ((theirs - exact).norm() / exact.norm()).item()
        check(f"{name}: gradient, against float32 of theirs", gradients(models["ours"], batch, dtype)[1], exact, bound)
    sides = {s: functools.partial(train_step, model, adamw(model), batch, dtype) for s, model in models.items()}
    seconds = in_turn(sides, a.repeats)
    rows = [row(name, seconds["ours"], seconds["theirs"], goal, "transformers")]
    if memory_goal:
        where = {"shape": shape, "dtype": dtype, "repeats": 2, "smoke": a.smoke, "device": str(device)}
        where |= dict(zip("BST", dims, strict=True))
        ours, theirs = ([in_child(side=side, **where)["mb"]] for side in ("ours", "theirs"))
        rows.append(row("its peak memory", ours, theirs, memory_goal, "transformers", "MB"))
    return rows


def answer_with(model, batch, n, beams, memory=None):
    """ids (B, n); memory: the encoded sources, where the encoder is not to be timed"""
    ids, mask, marks, _ = batch
    if isinstance(model, tsqa.T5):
        model.__dict__.pop("encode", None)
        if memory is not None:
            model.encode = lambda *_: memory
        return model.generate(ids, mask, marks, n, beams)
    from transformers.modeling_outputs import BaseModelOutput

    source = {"input_ids": ids} if memory is None else {"encoder_outputs": BaseModelOutput(last_hidden_state=memory)}
    return model.generate(**source, attention_mask=mask, max_new_tokens=n, num_beams=beams, do_sample=False)[:, 1:]


@torch.no_grad()
def greedy(a, dtype, goal, beams=1, weights=False, decoder=False):
    """weights: their model is cast to the dtype once, in place of autocast; decoder: the sources are encoded before."""
    c, (B, S, n), device = config("t5-small", a.smoke), sizes("greedy", a.smoke), tsqa.pick_device(a.device)
    batch, sides = make_batch(c, B, S, n, device), {}
    for side in ("ours", "theirs"):
        model, cast = build(c, side, device).eval(), side == "theirs" and weights
        model = model.to(torch.bfloat16) if cast else model

        def run(model=model, cast=cast, memory=None):
            with tsqa.autocast(device, "float32" if cast else dtype):
                return answer_with(model, batch, n, beams, memory)

        if decoder:
            with tsqa.autocast(device, dtype):
                encode = model.encode if side == "ours" else model.get_encoder()
                memory = encode(batch[0], batch[1])
            run = functools.partial(run, memory=memory if side == "ours" else memory[0])
        sides[side] = run
    what = f"{'greedy' if beams == 1 else f'beam {beams}'}, {'after encoding' if decoder else 'whole call'}, {dtype}"
    name = f"{what}, t5-small, {B} x {S} in, {n} out"
    # bfloat16 decides near ties by its rounding, and goes on from there: only the first pieces can be compared
    same_answers(
        name, sides["ours"](), sides["theirs"](), n if dtype == "float32" else 1, 0 if dtype == "float32" else 0.1
    )
    seconds = in_turn(sides, a.repeats)
    return [
        row(name, seconds["ours"], seconds["theirs"], goal, f"transformers{', bfloat16 weights' if weights else ''}")
    ]


def ctranslate2_of(c, directory):
    """A CTranslate2 translator of the same weights; its tokens are the ids, written as words."""
    import ctranslate2
    import transformers

    words = ["<pad>", "</s>", "<unk>", *map(str, range(3, c.vocab_size))]

    class Words:
        pad_token, eos_token, unk_token = words[:3]
        get_vocab = lambda self: {word: i for i, word in enumerate(words)}
        convert_ids_to_tokens = lambda self, i: words[i]

    class Converter(ctranslate2.converters.TransformersConverter):
        load_tokenizer = lambda *_, **__: Words()

    transformers.logging.set_verbosity_error()
    build(c, "ours", "cpu").save_pretrained(directory)
    Converter(str(directory)).convert(str(directory / "converted"))
    how = {"compute_type": "float32", "intra_threads": torch.get_num_threads(), "inter_threads": 1}
    return ctranslate2.Translator(str(directory / "converted"), device="cpu", **how), words


def ctranslate2(a):
    c, (B, S, n) = config("t5-small", a.smoke), sizes("greedy", a.smoke)
    model, batch = build(c, "ours", "cpu").eval(), make_batch(c, B, S, n, "cpu")
    with tempfile.TemporaryDirectory() as directory:
        translator, words = ctranslate2_of(c, Path(directory))
        sources = [
            [words[i] for i in ids[:length]]
            for ids, length in zip(batch[0].tolist(), batch[1].sum(1).tolist(), strict=True)
        ]

        def theirs():
            out = translator.translate_batch(sources, beam_size=1, max_decoding_length=n, max_batch_size=0)
            return [[words.index(word) if word in words[:3] else int(word) for word in x.hypotheses[0]] for x in out]

        ours = lambda: answer_with(model, batch, n, 1)
        name = f"greedy, whole call, float32, t5-small, {B} x {S} in, {n} out"
        same_answers(name, ours(), torch.tensor(theirs()), n, 0)
        seconds = in_turn({"ours": ours, "theirs": theirs}, a.repeats)
    return [row(name, seconds["ours"], seconds["theirs"], 1.2, "CTranslate2")]


def products(c, B, S, T):
    """Matrix products of a training step, forward: (times, batch, m, k, n, float32?): (m, k) by (k, n)"""
    D, inner, F, H, d = c.d_model, c.num_heads * c.d_kv, c.d_ff, c.num_heads, c.d_kv
    wide = F * (2 if c.feed_forward_proj == "gated-gelu" else 1)
    common = lambda n: [(1, n, D, 3 * inner), (1, n, inner, D), (1, n, D, wide), (1, n, F, D)]
    attend = lambda t, s: [(B * H, t, d, s), (B * H, t, s, d)]
    cross = [(1, B * T, D, inner), (1, B * S, D, 2 * inner), (1, B * T, inner, D), *attend(T, S)]
    stacks = [
        (c.num_layers, common(B * S) + attend(S, S)),
        (c.num_decoder_layers, common(B * T) + attend(T, T) + cross),
    ]
    return [(n, *shape, False) for n, shapes in stacks for shape in shapes] + [(1, 1, B * T, D, c.vocab_size, True)]


def chip(a):
    """Forward and backward of each product: y = a b, da = dy b', db = a' dy; the weights lie as in nn.Linear."""
    c, dims, device = config("t5-small", a.smoke), sizes("train", a.smoke), tsqa.pick_device(a.device)
    made = []
    for times, b, m, k, n, full in products(c, *dims):
        dtype, one = torch.float32 if full else torch.bfloat16, b == 1
        x, w, dy = (torch.randn(b, *s, device=device, dtype=dtype) for s in ((m, k), (n, k), (m, n)))
        made.append(
            (times, torch.mm if one else torch.bmm, *((t[0] if one else t) for t in (x, w.transpose(1, 2), dy)))
        )

    def theirs():
        for times, mm, x, w, dy in made:
            for _ in range(times):
                mm(x, w), mm(dy, w.transpose(-1, -2)), mm(x.transpose(-1, -2), dy)

    model = build(c, "ours", device)
    ours = functools.partial(train_step, model, adamw(model), make_batch(c, *dims, device), "bfloat16")
    seconds = in_turn({"ours": ours, "theirs": theirs}, a.repeats)
    name = f"training step, t5-small, {dims[0]} x {dims[1]} in, {dims[2]} out, bfloat16"
    return [row(name, seconds["ours"], seconds["theirs"], 2.0, "its matrix products alone")]


def mini_sources(c, n):
    tokenizer, tagger = Tokenizer(ROOT / "assets" / "tiny-t5"), TimeTagger()
    examples = list(mini("train", n=n))
    pairs = [(ex.question, ex.context) for ex in examples]
    return tokenizer, tagger, examples, pairs, tsqa.encode_sources(tokenizer, tagger, pairs, 10, c.max_source)


def one_ppo_iteration(a):
    """Rollout, scores and updates, at a learning rate of 0, against the same work called for directly."""
    c, device, n = config("tiny", a.smoke), tsqa.pick_device(a.device), 8 if a.smoke else 64
    args = ["--num-rollouts", n, "--batch-size", n // 4, "--chunk-size", n // 4, "--samples", 1, "--ppo-epochs", 4]
    args = ppo.parse_args([*map(str, args), "--max-new-tokens", "16", "--lr", "0", "--stop-kl", "1e6"])
    tokenizer, _, examples, _, rows = mini_sources(c, n)
    t5 = build(c, "ours", device).eval()
    policy, ref = (
        torch.nn.ModuleDict({"t5": t5, "value": ppo.value_head(c.d_model).to(device)}).eval(),
        ppo.frozen_copy(t5),
    )
    allowed = ppo.text_ids(tokenizer, c.vocab_size, device)
    golds = [ex.answers for ex in examples]
    score = reward.TripletReward(reward.AnswerEncoder(ref, tokenizer, [x for gold in golds for x in gold]))
    facts = ppo.FactIndex(examples)
    wrong = [[x for kind in ppo.negatives(ex, "both", 4, facts, 0) for x in kind] for ex in examples]
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.0)

    def iteration():
        ids = ppo.sample(t5, rows, allowed, args, ppo.generator("speed"))
        batch = {"ids": ids, "mask": ppo.action_mask(ids)}
        batch |= ppo.teacher_forced(policy, ref, rows, ids, allowed, args)
        said, ended = [tokenizer.decode(x) for x in ids.tolist()], (ids == EOS).any(1).tolist()
        rewards = ppo.kl_rewards(
            score(said, golds, wrong, ended).to(device), batch["logp"], batch["ref_logp"], batch["mask"], 0.1
        )
        advantages, batch["returns"] = ppo.gae(rewards, batch["values"], batch["mask"], 1.0, 0.95)
        batch["advantages"] = ppo.masked_whiten(advantages, batch["mask"])
        ppo.update(policy, optimizer, rows, batch, allowed, args, ppo.generator("order"))
        return ids

    labels, plain = iteration(), adamw(t5, lr=0.0)
    chunks = [
        tsqa.collate([rows[i] for i in index], device) for index in ppo.by_length(rows, range(n), args.chunk_size)
    ]
    index = list(ppo.by_length(rows, range(n), args.chunk_size))

    def sampling():
        with torch.no_grad(), tsqa.autocast(device, args.dtype):
            for chunk in chunks:
                t5.generate(*chunk, args.max_new_tokens, do_sample=True, allowed=allowed)

    def scoring():
        with torch.no_grad(), tsqa.autocast(device, args.dtype):
            for at, (ids, mask, marks) in zip(index, chunks, strict=True):
                t5(ids, mask, labels[at], marks)

    def training():
        for at, chunk in zip(index, chunks, strict=True):
            train_step(t5, plain, [*chunk, labels[at]], args.dtype)

    seconds = in_turn({"ours": iteration, "sampling": sampling, "scoring": scoring, "training": training}, a.repeats)
    parts = [
        x + 3 * y + 4 * z for x, y, z in zip(*(seconds[k] for k in ("sampling", "scoring", "training")), strict=True)
    ]
    return [row(f"one PPO iteration, tiny, {n} answers", seconds["ours"], parts, 1.2, "the sum of its parts")]


def tagging(a):
    c, device, n = config("tiny", a.smoke), tsqa.pick_device(a.device), 4 if a.smoke else 48
    tokenizer, tagger, examples, pairs, rows = mini_sources(c, n)
    model, targets = build(c, "ours", device), [tokenizer.encode(ex.answers[0]) for ex in examples]
    args = argparse.Namespace(dtype="auto", clip=1.0)

    def ours():
        vars(tagger).pop("known", None)  # the texts it has seen before
        tsqa.encode_sources(tokenizer, tagger, pairs, 10, c.max_source)

    theirs = functools.partial(tsqa.train_step, model, adamw(model), rows, targets, [range(n)], args)
    seconds = in_turn({"ours": ours, "theirs": theirs}, a.repeats)
    name = f"tagging and tokenizing, {n} questions"
    return [row(name, seconds["ours"], seconds["theirs"], 0.05, "the training step they feed, tiny")]


@torch.no_grad()
def events(a):
    """Answers to questions about 100 events: to the ten or so that share most words with each, against to all of them."""
    n, device, rows = 2 if a.smoke else 8, tsqa.pick_device(a.device), []
    tokenizer, tagger, model = (
        Tokenizer(ROOT / "assets" / "tiny-t5"),
        TimeTagger(),
        build(config("tiny", a.smoke), "ours", device),
    )
    examples = [traveler_example(q) for q in traveler_questions() if len(q.events) == 100][:: 300 // n][:n]
    sides, memory = {}, {}
    for side, pieces in (("ours", 320), ("theirs", 4096)):

        def answer(pieces=pieces):
            model.config.max_source = pieces
            tsqa.predict(model, tokenizer, tagger, examples, batch_size=8, max_new_tokens=8, passages="words")

        sides[side], before = answer, resident("VmRSS")
        reset_peak()
        answer()
        memory[side] = [resident("VmHWM") - before]
    seconds = in_turn(sides, a.repeats)
    rows.append(
        row(f"{n} answers about 100 events, tiny, 320 pieces", seconds["ours"], seconds["theirs"], 1.0, "all pieces")
    )
    rows.append(row("its peak memory", memory["ours"], memory["theirs"], 1.0, "all pieces", "MB"))
    return rows


def scaling(a):
    """Training steps of both sides, each in a process of its own, against the context length and against the batch."""
    T, out = 32 if not a.smoke else 4, []
    points = [(1, S) for S in (256, 512, 1024, 2048, 4096)] + [(B, 512) for B in (2, 4, 8, 16)]
    for B, S in [(1, 32), (2, 32)] if a.smoke else points:
        line = {"batch": B, "context": S}
        for side in ("ours", "theirs"):
            where = {
                "shape": "t5-small",
                "dtype": "bfloat16",
                "smoke": a.smoke,
                "device": str(tsqa.pick_device(a.device)),
            }
            told = in_child(side=side, B=B, S=S, T=T, repeats=a.repeats, **where)
            us = [x * 1e6 / (B * S) for x in told["seconds"]] if told else []
            line[f"{side}, us a piece"] = (
                f"{statistics.median(us):.1f} ({min(us):.1f} to {max(us):.1f})" if us else "no room"
            )
            line[f"{side}, KB a piece"] = f"{told['mb'] * 1024 / (B * S):.0f}" if told else "no room"
            line[f"{side}, MB"] = f"{told['mb']:.0f}" if told else "no room"
        out.append(line)
    return out


ROWS = {
    "train-bf16": functools.partial(
        train, shape="t5-small", size="train", dtype="bfloat16", goal=0.55, memory_goal=0.8
    ),
    "train-fp32": functools.partial(train, shape="t5-small", size="train", dtype="float32", goal=0.8),
    "train-tiny": functools.partial(train, shape="tiny", size="tiny", dtype="bfloat16", goal=0.5),
    "decode": functools.partial(greedy, dtype="float32", goal=0.4, decoder=True),
    "decode-bf16": functools.partial(greedy, dtype="bfloat16", goal=0.4, decoder=True),
    "greedy-fp32": functools.partial(greedy, dtype="float32", goal=0.75),
    "greedy-bf16": functools.partial(greedy, dtype="bfloat16", goal=0.5),
    "greedy-bf16-weights": functools.partial(greedy, dtype="bfloat16", goal=0.5, weights=True),
    "beam": functools.partial(greedy, dtype="float32", goal=0.6, beams=4),
    "ctranslate2": ctranslate2,
    "chip": chip,
    "ppo": one_ppo_iteration,
    "tagging": tagging,
    "events": events,
    "scaling": scaling,
}


def machine(load):
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu[0] if cpu else platform.machine()
    used = [m for m in ("torch", "transformers", "ctranslate2") if m in sys.modules]
    versions = ", ".join(f"{m} {sys.modules[m].__version__}" for m in used)
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} threads"
    return f"{name}, {threads}, load {load:.1f} at the start; {versions}; {datetime.date.today()}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=f"of {', '.join(ROWS)}")
    p.add_argument("--repeats", type=int, default=7, help="times each side is run, after one to warm up (default: 7)")
    p.add_argument("--threads", type=int, help="of torch and CTranslate2 (default: torch's)")
    p.add_argument("--device", help="cpu or cuda (default: cuda if there is one, else cpu)")
    p.add_argument(
        "--smoke", action="store_true", help="small models and batches: the rows run, their figures mean nothing"
    )
    p.add_argument("--point", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    if a.point:
        print(json.dumps(point(**json.loads(a.point))))
        return
    lines, scales, load = [], [], os.getloadavg()[0]
    for name in a.rows:
        print(name, file=sys.stderr)
        (scales if name == "scaling" else lines).extend(ROWS[name](a))
    print(f"{machine(load)}; medians of {a.repeats} (least to most)\n")
    print("\n\n".join(table(rows) for rows in (lines, scales) if rows))


if __name__ == "__main__":
    main()
