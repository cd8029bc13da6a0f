"""Time and memory of the paper's rows on two GPUs: ESTIMATES, from what the code of tsqa does, not from a clock.

    python benchmarks/estimate.py          # half a minute, any machine

tsqa.T5 runs on fake tensors (shapes without numbers) at the paper's sizes, while torch counts the FLOPs of its matrix
products, the operations it starts, and the bytes that autograd keeps for the backward pass. Hours: the FLOPs at an
ASSUMED share of the chip's published peak, or the operations at an ASSUMED 10 microseconds each (Python, launch),
whichever is longer. Every source counts as 512 pieces and every answer as 32: an upper bound for ReasonQA. Not in the
figures: time marks by spaCy (once, on the CPU), loading, dev scores, CUDA's own memory (about 1 GB), fragmentation.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ppo
import tsqa
from data import TABLE_1, table

BASE = tsqa.T5Config(32128, 768, 64, 3072, 12, 12, 12)  # google-t5/t5-base
FLAN = tsqa.T5Config(32128, 1024, 64, 2816, 24, 24, 16, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
GPUS = {  # published peak in FLOP/s, dense; dtype of the products; bytes of memory
    "H200": (989e12, "bfloat16", 141e9),
    "T4": (8.1e12, "float32", 16e9),  # 65e12 in float16, which tsqa does not use; it has no bfloat16
}
SHARE, LAUNCH = 0.4, 10e-6  # of the peak; seconds an operation
S, T = 512, 32  # pieces of a source, of an answer
TRAIN, _, TEST = TABLE_1["tempreason-l2"]


class Operations(TorchDispatchMode):
    """Counts what would start a kernel: no views, no questions about a tensor."""

    n = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.n += op.namespace == "aten" and not op.is_view
        return op(*args, **kwargs or {})


def measure(f, model):
    """FLOPs, operations, and bytes kept for the backward pass beside the weights (a storage counts once) of f()"""
    kept, address = {}, lambda x: x.untyped_storage()._cdata
    weights = set(map(address, model.parameters()))

    def pack(x):
        if address(x) not in weights:
            kept[address(x)] = x.untyped_storage()  # held, so that no address comes twice
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with hooks, FlopCounterMode(display=False) as flops, Operations() as operations:
        f()
    return np.array([flops.get_total_flops(), operations.n, sum(x.nbytes() for x in kept.values())], float)


def work(c, B, dtype, how, dropout=0.0):
    """`measure` of B questions: "train" (both passes), "forward" (no gradient), or "decode" (greedy, T steps)"""
    with FakeTensorMode(), tsqa.autocast(torch.device("cpu"), dtype), torch.set_grad_enabled(how == "train"):
        model = tsqa.T5(c).train()
        model.set_dropout(dropout)
        ids, labels = (torch.ones(B, n, dtype=torch.long) for n in (S, T))
        run = lambda: model(ids, ids, labels, ids)[1]
        if how != "decode":
            return measure((lambda: run().backward()) if how == "train" else run, model)
        state = model.start(ids, ids, ids, T)
        total = measure(lambda: model.start(ids, ids, ids, T), model)
        total += T * measure(
            lambda: model.step(labels[:, 0], T - 1, state).argmax(-1), model
        )  # the last is the longest
        total[2] = state["memory"].nbytes + sum(x.nbytes for pair in state["cache"] for x in pair)
        return total


def rows(dtype):
    """{row: FLOPs, operations, bytes of the whole row}; weights, gradients and Adam's two moments are in float32"""
    sizes = {}
    for name, c in (("base", BASE), ("flan", FLAN)):
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in tsqa.T5(c).parameters())
    flan = work(FLAN, 32, dtype, "decode")
    sft = work(BASE, tsqa.PAPER["batch_size"], dtype, "train", tsqa.PAPER["dropout"])
    p, k = ppo.PAPER, ppo.PAPER["chunk_size"]
    decode, forward, train = (work(BASE, k, dtype, how) for how in ("decode", "forward", "train"))
    rl = decode + 2 * forward + p["ppo_epochs"] * train  # sampling; policy and frozen copy on it; updates
    rl[1] += p["ppo_epochs"] * train[1] * (2 * k / p["batch_size"] - 1)  # a batch of 16 is a pass of 12 and one of 4
    rl[2] = max(train[2], decode[2])
    found = {
        "FLAN-T5-large, zero-shot": (flan, TEST / 32, 4 * sizes["flan"]),
        "T5-SFT; with TIAE": (sft, tsqa.PAPER["epochs"] * TRAIN / tsqa.PAPER["batch_size"], 16 * sizes["base"]),
        "PPO: TempT5; GCRL; ours": (rl, p["epochs"] * TRAIN / k, 20 * sizes["base"]),
    }
    return {name: (x[0] * n, x[1] * n, x[2] + size) for name, (x, n, size) in found.items()}


def main():
    tsqa.padding_bias = lambda mask: None  # fake tensors have no numbers to look at; all sources are full
    out = {}
    for gpu, (peak, dtype, memory) in GPUS.items():
        for name, (flops, operations, size) in rows(dtype).items():
            hours = max(flops / (SHARE * peak), LAUNCH * operations) / 3600
            row = out.setdefault(name, {"system": name, "PFLOP": f"{flops / 1e15:,.0f}"})
            row |= {
                f"{gpu}: hours": f"{hours:.2f}",
                f"{gpu}: GB": f"{size / 1e9:.1f}" + ("!" if size > 0.9 * memory else ""),
            }
    print(table(list(out.values())))
    print(
        f"ESTIMATES at {100 * SHARE:.0f} % of the peak and {1e6 * LAUNCH:.0f} us an operation; !: too much for the GPU"
    )


if __name__ == "__main__":
    main()
