"""A T5 encoder-decoder with the temporal information-aware embedding, in plain PyTorch.

What is here, top to bottom: the model (T5; the temporal embedding of the paper in `T5.encode`) with its decoding (greedy,
sampling, beams), weights in and out (Hugging Face layout, no `transformers`), time marks and sources, stage 1 training,
pretraining of the bundled tiny model, and the command line.
Several devices: `torchrun` starts one process for each; all hold the whole model, each takes its part of every batch, and
the gradients are added up.
What is not here: a trainer class, a config system, model parallelism.

References
- T5: Raffel et al. 2020, https://arxiv.org/abs/1910.10683; v1.1 and FLAN: gated tanh-GELU, untied output
- "Enhancing Temporal Sensitivity and Reasoning for Time-Sensitive Question Answering", Yang et al. 2024 ("the paper")
"""

import argparse
import calendar
import contextlib
import errno
import functools
import importlib.metadata
import io
import itertools
import json
import math
import mmap
import os
import random
import re
import shlex
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from spacy import displacy
from torch import nn
from tqdm import tqdm

from data import (
    EOS,
    HUB,
    LABELS,
    MONTHS,
    PAD,
    PASSAGES,
    Help,
    Names,
    TimeTagger,
    Tokenizer,
    UserError,
    batches,
    cache_dir,
    command,
    copy_task,
    date_task,
    download,
    fact_task,
    match_task,
    number,
    pad,
    run,
    select_passages,
    write_atomic,
)
from evaluate import BENCHES, GENERATED, exact_match, f1, load_bench, traveler_task

MASKED = -3e4  # added to scores that must not count; finite in every float type: a row of nothing but pads gives no NaN


# ----------------------------------------------------------------------------------------------------------------------
# model


@dataclass
class T5Config:
    """Sizes of a T5, under the names of a Hugging Face `config.json`; by default those of the bundled tiny model."""

    vocab_size: int = 2176  # rows of the embedding matrix: pieces + 100 sentinels, rounded up
    d_model: int = 192
    d_kv: int = 32  # size of one head; num_heads * d_kv need not be d_model (v1.1 small: 6 * 64 != 512)
    d_ff: int = 768
    num_layers: int = 7
    num_decoder_layers: int = 2
    num_heads: int = 6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"  # "relu" (v1.0) or "gated-gelu" (v1.1, FLAN: tanh approximation)
    tie_word_embeddings: bool = True  # v1.0: output = embedding, hidden states scaled by d_model ** -0.5
    time_window: int = 10  # ours: L of equation (5), in pieces
    max_source: int = 512  # ours: pieces of a question with its context; 512 where config.json does not say
    max_target: int = 64  # ours: pieces of an answer, EOS included


class RMSNorm(nn.Module):
    """Scale by the root mean square, computed in float32: no mean, no bias."""

    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        y = F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        # cast once here rather than in each of the matrix products that read the result
        return y.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else y


class Attend(torch.autograd.Function):
    """softmax(q k^T + bias + mask) v, a few rows of the batch at a time, so that the (T, S) scores stay in the cache.

    Nothing of size (T, S) is kept for the backward pass: the scores are computed again. `attend_plain` is the same
    formula, and the tests hold the two against each other.
    """

    @staticmethod
    def probs(q, k, bias, mask):
        with torch.autocast(q.device.type, enabled=False):
            scores = torch.matmul(q, k.transpose(2, 3)).add_(bias)  # (b, H, T, S)
            return torch.softmax(scores if mask is None else scores.add_(mask), dim=-1)  # sums in float32 inside

    @staticmethod
    def rows(q, k):
        return max(1, 2**20 // (q.shape[1] * q.shape[2] * k.shape[2]))  # about a million scores at a time

    @staticmethod
    def forward(ctx, q, k, v, bias, mask):
        out, n = torch.empty_like(q), Attend.rows(q, k)
        for i in range(0, len(q), n):
            s = slice(i, i + n)
            torch.matmul(Attend.probs(q[s], k[s], bias, None if mask is None else mask[s]), v[s], out=out[s])
        ctx.save_for_backward(q, k, v, bias, mask)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, bias, mask = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dbias = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device) if ctx.needs_input_grad[3] else None
        dout, n = dout.contiguous(), Attend.rows(q, k)
        for i in range(0, len(q), n):
            s = slice(i, i + n)
            p = Attend.probs(q[s], k[s], bias, None if mask is None else mask[s])
            torch.matmul(p.transpose(2, 3), dout[s], out=dv[s])
            dp = torch.matmul(dout[s], v[s].transpose(2, 3))
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)  # p * (dp - sum(dp * p))
            torch.matmul(ds, k[s], out=dq[s])
            torch.matmul(ds.transpose(2, 3), q[s], out=dk[s])
            if dbias is not None:
                dbias += ds.sum(0, keepdim=True, dtype=torch.float32)
        return dq, dk, dv, None if dbias is None else dbias.to(bias.dtype), None


def attend_plain(q, k, v, bias, mask, p=0.0):
    """q (B, H, T, d), k and v (B, H, S, d), bias (1, H, T, S) or (1, 1, 1, 1), mask (B, 1, 1, S) or None"""
    scores = q @ k.transpose(2, 3) + bias
    scores = scores if mask is None else scores + mask
    return F.dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), p) @ v


class Attention(nn.Module):
    """Multi-head attention without biases and without 1/sqrt(d_kv): T5 puts that factor into the initialisation."""

    def __init__(self, c):
        super().__init__()
        inner = c.num_heads * c.d_kv
        self.q, self.k, self.v = (nn.Linear(c.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, c.d_model, bias=False)
        self.heads, self.p = c.num_heads, c.dropout_rate

    def project(self, x, *linears):
        """x (B, T, D) through several projections -> one (B, H, T, d_kv) each"""
        if x.shape[1] == 1:  # in a decoding step joining the weights takes longer
            y = torch.cat([linear(x) for linear in linears], -1)  # (B, T, n * H * d_kv)
        else:  # the same in one matrix product
            weight = torch.cat([linear.weight for linear in linears]) if len(linears) > 1 else linears[0].weight
            y = F.linear(x, weight)
        return y.unflatten(2, (len(linears), self.heads, -1)).permute(2, 0, 3, 1, 4).contiguous()

    def forward(self, q, k, v, bias, mask):
        """q (B, H, T, d_kv), k and v (B, H, S, d_kv) -> (B, T, D)"""
        p = self.p if self.training else 0.0
        plain = p > 0 or torch.compiler.is_compiling()  # the loop of Attend would be compiled anew for each size
        y = attend_plain(q, k, v, bias, mask, p) if plain else Attend.apply(q, k, v, bias, mask)
        return self.o(y.transpose(1, 2).flatten(2))

    def look_up_weights(self, dtype):
        """W_k and W_v by heads, (H, d_kv, D) each: views of them would be cast anew at every step"""
        return [linear.weight.unflatten(0, (self.heads, -1)).to(dtype) for linear in (self.k, self.v)]

    def look_up(self, x, memory, w_k, w_v, mask):
        """Attention of one decoder step to the encoded source, without keys and values of the source.

        x (B K, 1, D), K rows to each source, memory (B, S, D), mask (B, 1, 1, S) or None -> (B K, 1, D)
        q . (W_k m) = (W_k' q) . m, and sum p (W_v m) = W_v (sum p m): the source itself is read, once for all heads and
        for all rows that share it. `forward` with keys and values is the same formula.
        """
        B, H, D = len(memory), self.heads, memory.shape[2]
        q = self.q(x[:, 0]).unflatten(1, (H, -1)).transpose(0, 1) @ w_k  # (H, B K, D)
        scores = q.transpose(0, 1).reshape(B, -1, D) @ memory.transpose(1, 2)  # (B, K H, S)
        p = torch.softmax(scores if mask is None else scores + mask[:, 0], dim=-1).to(memory.dtype)
        y = (p @ memory).view(-1, H, D).transpose(0, 1) @ w_v.transpose(1, 2)  # (H, B K, d_kv)
        return self.o(y.transpose(0, 1).flatten(1))[:, None]


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gated = c.feed_forward_proj == "gated-gelu"
        if self.gated:
            self.wi_0, self.wi_1 = (nn.Linear(c.d_model, c.d_ff, bias=False) for _ in range(2))
        else:
            self.wi = nn.Linear(c.d_model, c.d_ff, bias=False)
        self.wo = nn.Linear(c.d_ff, c.d_model, bias=False)
        self.p = c.dropout_rate

    def forward(self, x):
        h = F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x) if self.gated else F.relu(self.wi(x))
        return self.wo(F.dropout(h, self.p, self.training))


class Block(nn.Module):
    """Pre-norm residual block: self-attention, cross-attention (decoder only), feed-forward."""

    def __init__(self, c, decoder):
        super().__init__()
        self.self_norm, self.self_attn = RMSNorm(c.d_model, c.layer_norm_epsilon), Attention(c)
        if decoder:
            self.cross_norm, self.cross_attn = RMSNorm(c.d_model, c.layer_norm_epsilon), Attention(c)
        self.ff_norm, self.ff = RMSNorm(c.d_model, c.layer_norm_epsilon), FeedForward(c)
        self.drop = nn.Dropout(c.dropout_rate)

    def forward(self, x, bias, mask=None, cross=None, cross_mask=None, cache=None):
        """x (B, T, D), of the decoder (B K, T, D): K rows to each source; cross: (keys, values) of the encoded source, or in
        a decoding step what `look_up` needs of it; cache: (keys, values, t) grown in place at t"""
        attn = self.self_attn
        q, k, v = attn.project(self.self_norm(x), attn.q, attn.k, attn.v)
        if cache is not None:
            keys, values, t = cache
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            k, v = keys[:, :, : t + 1], values[:, :, : t + 1]
        x = x + self.drop(attn(q, k, v, bias, mask))
        if cache is not None:
            x = x + self.cross_attn.look_up(self.cross_norm(x), *cross, cross_mask)
        elif cross is not None:
            attn, T = self.cross_attn, x.shape[1]
            (q,) = attn.project(self.cross_norm(x), attn.q)
            q = q.unflatten(0, (len(cross[0]), -1)).transpose(1, 2).flatten(2, 3)  # (B, H, K T, d_kv): K rows a source
            y = attn(q, *cross, q.new_zeros(1, 1, 1, 1), cross_mask)  # (B, K T, D); no position bias here
            x = x + self.drop(y.unflatten(1, (-1, T)).flatten(0, 1))
        return x + self.drop(self.ff(self.ff_norm(x)))


def relative_bucket(rel, bidirectional, num_buckets, max_distance):
    """Bucket of a distance key - query: exact when near, logarithmic when far, the last one beyond max_distance."""
    bucket = torch.zeros_like(rel)
    if bidirectional:
        num_buckets //= 2
        bucket = (rel > 0).long() * num_buckets
        rel = rel.abs()
    else:
        rel = (-rel).clamp(min=0)
    exact = num_buckets // 2
    far = torch.log(rel.float().clamp(min=1) / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far = (exact + far.long()).clamp(max=num_buckets - 1)
    return bucket + torch.where(rel < exact, rel, far)


class Stack(nn.Module):
    """Encoder or decoder. One table of relative position biases, owned by the stack and added in every layer."""

    def __init__(self, c, decoder):
        super().__init__()
        self.blocks = nn.ModuleList(Block(c, decoder) for _ in range(c.num_decoder_layers if decoder else c.num_layers))
        self.rel_bias = nn.Embedding(c.relative_attention_num_buckets, c.num_heads)
        self.final_norm = RMSNorm(c.d_model, c.layer_norm_epsilon)
        self.drop = nn.Dropout(c.dropout_rate)
        self.c, self.decoder = c, decoder

    def position_bias(self, T, S, device):
        """Bias of the last T of S query positions against S keys: (1, H, T, S), float32"""
        c = self.c
        rel = torch.arange(S, device=device)[None, :] - torch.arange(S - T, S, device=device)[:, None]
        buckets = relative_bucket(
            rel, not self.decoder, c.relative_attention_num_buckets, c.relative_attention_max_distance
        )
        bias = (
            self.rel_bias(buckets).permute(2, 0, 1).contiguous()[None]
        )  # else every sum with it is three times as slow
        return bias.masked_fill(rel > 0, MASKED) if self.decoder else bias


class T5(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.shared = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder, self.decoder = Stack(c, decoder=False), Stack(c, decoder=True)
        if not c.tie_word_embeddings:
            self.lm_head = nn.Linear(c.d_model, c.vocab_size, bias=False)
        self.time_embedding = nn.Embedding(2, c.d_model)  # W_time of the paper: row 0 = no time near, row 1 = time
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """T5's own initialisation; the time embedding is zero, so that a pretrained model starts out unchanged."""
        c = self.config
        self.shared.weight.normal_()
        self.time_embedding.weight.zero_()
        if not c.tie_word_embeddings:
            self.lm_head.weight.normal_()
        for m in self.modules():
            if isinstance(m, Attention):
                m.q.weight.normal_(std=(c.d_model * c.d_kv) ** -0.5)
                m.k.weight.normal_(std=c.d_model**-0.5)
                m.v.weight.normal_(std=c.d_model**-0.5)
                m.o.weight.normal_(std=(c.num_heads * c.d_kv) ** -0.5)
            elif isinstance(m, FeedForward):
                for name, linear in m.named_children():
                    linear.weight.normal_(std=(c.d_ff if name == "wo" else c.d_model) ** -0.5)
            elif isinstance(m, Stack):
                m.rel_bias.weight.normal_(std=c.d_model**-0.5)

    def set_dropout(self, p):
        self.config.dropout_rate = p
        for m in self.modules():
            if isinstance(m, (nn.Dropout, Attention, FeedForward)):
                m.p = p

    def encode(self, input_ids, attention_mask, time_marks=None, taps=None):
        """input_ids, attention_mask, time_marks (B, S) -> hidden states (B, S, D); a list `taps` gets each block's output"""
        x = self.shared(input_ids)
        if time_marks is not None:
            x = x + self.time_embedding(time_marks.long())  # e_text + e_time, step 4 of section 3.1
        S = input_ids.shape[1]
        bias = self.encoder.position_bias(S, S, x.device)
        return self.run(self.encoder, x, bias, padding_bias(attention_mask), taps=taps)

    def decode(self, decoder_input_ids, memory, attention_mask):
        """(B K, T), (B, S, D), (B, S) -> hidden states after the final norm (B K, T, D); K rows to each source, side by side"""
        x, T = self.shared(decoder_input_ids), decoder_input_ids.shape[1]
        bias = self.decoder.position_bias(T, T, x.device)
        return self.run(self.decoder, x, bias, None, self.cross_keys(memory), padding_bias(attention_mask))

    def run(self, stack, x, bias, mask=None, cross=None, cross_mask=None, cache=None, taps=None):
        """All blocks of a stack and its final norm; bias and masks are cast once, to the dtype of the scores."""
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            bias, mask, cross_mask = (t if t is None else t.to(dtype) for t in (bias, mask, cross_mask))
        x = stack.drop(x)
        for i, block in enumerate(stack.blocks):
            x = block(x, bias, mask, cross and cross[i], cross_mask, cache and cache[i])
            if taps is not None:
                taps.append(x)
        return stack.drop(stack.final_norm(x))

    def cross_keys(self, memory):
        """Keys and values of the encoded source for each decoder layer: computed once, used at every step."""
        return [a.project(memory, a.k, a.v).unbind(0) for a in (block.cross_attn for block in self.decoder.blocks)]

    def logits(self, hidden):
        """(..., D) -> (..., V) float32"""
        if self.config.tie_word_embeddings:
            hidden, weight = hidden * self.config.d_model**-0.5, self.shared.weight
        else:
            weight = self.lm_head.weight
        with torch.autocast(hidden.device.type, enabled=False):  # bfloat16 logits are too coarse for log-ratios
            return F.linear(hidden.float(), weight)

    def forward(self, input_ids, attention_mask, labels=None, time_marks=None, decoder_input_ids=None):
        """(B, S), (B, S), labels (B, T) with -100 for padding, marks (B, S) of 0/1 -> logits (B, T, V) float32, loss

        The loss is the mean cross-entropy over the labels that are not -100; None without labels.
        """
        if decoder_input_ids is None:
            assert labels is not None, "forward needs labels or decoder_input_ids"
            decoder_input_ids = shift_right(labels)
        hidden = self.decode(decoder_input_ids, self.encode(input_ids, attention_mask, time_marks), attention_mask)
        logits = self.logits(hidden)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return logits, loss

    @classmethod
    def from_pretrained(cls, name):
        """`tiny` (bundled), a directory in Hugging Face layout, or a hub id such as google-t5/t5-small.

        -> T5 in eval mode, float32, on the CPU. UserError says which file or key is wrong.
        """
        directory = model_dir(name)
        config = directory / "config.json"
        if str(name) == "tiny" and not (directory / "model.safetensors").exists():
            print(f"{directory} holds no weights yet: the tiny model starts from random ones", file=sys.stderr)
            return cls(read_config(config) if config.exists() else T5Config()).eval()
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
            model = cls(read_config(config))
        check_memory(4 * sum(p.numel() for p in model.parameters()), config)
        model.load_state_dict(fit_weights(read_weights(directory), model, directory), assign=True)
        return model.eval()

    def save_pretrained(self, directory, dtype=torch.float32):
        """Writes `config.json` and `model.safetensors` so that `transformers` can load them; dtype may be a 16-bit one."""
        kind = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}
        kind |= IDS | {"torch_dtype": str(dtype).removeprefix("torch.")}
        weights = {hf_name(name): p for name, p in self.named_parameters()}
        # the weights come last: where they are, all is there
        write_atomic(Path(directory) / "config.json", json.dumps(kind | asdict(self.config), indent=2) + "\n")
        write_safetensors(Path(directory) / "model.safetensors", weights, dtype)

    def start(self, input_ids, attention_mask, time_marks, n, copies=1, allowed=None):
        """What `step` needs to decode n tokens, `copies` rows to each source, which is encoded once."""
        memory = self.encode(input_ids, attention_mask, time_marks)
        c, B = self.config, len(input_ids) * copies
        return {
            "bias": self.decoder.position_bias(n, n, memory.device),  # (1, H, n, n): one row of it a step
            "mask": padding_bias(attention_mask),
            "memory": memory,
            "weights": [block.cross_attn.look_up_weights(memory.dtype) for block in self.decoder.blocks],
            "cache": [[memory.new_empty(B, c.num_heads, n, c.d_kv) for _ in "kv"] for _ in self.decoder.blocks],
            "allowed": allowed,
        }

    def step(self, ids, t, state):
        """ids (B,): decoder input at position t -> logits (B, V) of the token that follows; fills the cache at t"""
        bias, cache = state["bias"][:, :, t : t + 1, : t + 1], [(*kv, t) for kv in state["cache"]]
        x, cross = self.shared(ids)[:, None], [(state["memory"], *w) for w in state["weights"]]  # x (B, 1, D)
        logits = self.logits(self.run(self.decoder, x, bias, None, cross, state["mask"], cache)[:, 0])
        return logits if state["allowed"] is None else logits.masked_fill(~state["allowed"], -math.inf)

    @torch.no_grad()
    def generate(
        self, input_ids, attention_mask, time_marks=None, max_new_tokens=32, num_beams=1, do_sample=False,
        temperature=1.0, uniform=None, allowed=None, copies=1, all_beams=False,
    ):  # fmt: skip
        """Answers by the best token at each step, by sampling, or by beam search (the ids `transformers` would give).

        input_ids, attention_mask, time_marks (B, S) -> ids (B, T), T <= max_new_tokens: no start token, zeros after EOS.
        do_sample draws from softmax(logits / temperature), nothing else cut off; `allowed` (V,) of bool forbids ids;
        copies: so many answers to each source, side by side, which is encoded once. uniform (B * copies, max_new_tokens),
        float64: the numbers in [0, 1) that decide the draws, so that no answer depends on the others of its batch.
        all_beams: the K = num_beams > 1 most probable answers -> ids (B, K, T), log-probabilities (B, K), EOS included;
        of their sum, not of its mean over the pieces, which favours long answers and leaves out the empty one.
        """
        assert max_new_tokens > 0 and num_beams > 0 and temperature > 0, "sizes and temperature must be positive"
        assert num_beams == 1 or not do_sample and copies == 1, "beams are neither sampled nor copied"
        assert num_beams > 1 or not all_beams, "all_beams needs num_beams > 1"
        training = self.training
        self.eval()  # dropout would change the answer
        try:
            state = self.start(input_ids, attention_mask, time_marks, max_new_tokens, num_beams * copies, allowed)
            if num_beams > 1:
                out, scores = self.beams(state, len(input_ids), max_new_tokens, num_beams, mean=not all_beams)
                out = out if all_beams else out[:, 0]
                out = out[..., : ((out == EOS).cumsum(-1) == 0).sum(-1).max() + 1]
                return (out, scores) if all_beams else out
            rows = torch.arange(len(input_ids) * copies, device=input_ids.device)  # those whose source has not ended
            ids, out = torch.full_like(rows, PAD), rows.new_zeros(len(rows), max_new_tokens)
            ended = rows < 0
            if do_sample and uniform is None:
                uniform = torch.rand(out.shape, dtype=torch.float64, device=out.device)
            for t in range(max_new_tokens):
                logits = self.step(ids, t, state)
                if do_sample:
                    p = (logits / temperature).double().softmax(-1).cumsum(-1)  # (b, V)
                    ids = torch.searchsorted(p, uniform[rows, t, None] * p[:, -1:], right=True)[:, 0]
                else:
                    ids = logits.argmax(-1)
                out[rows, t] = ids = ids.masked_fill(ended[rows], PAD)
                ended[rows] |= ids == EOS
                go = ~ended[rows].view(-1, copies).all(1)  # all answers to a source end before their rows are dropped
                if not go.any():
                    break
                if not go.all():
                    on = go.repeat_interleave(copies)
                    rows, ids, state = rows[on], ids[on], select(state, go, on)
            return out[:, : t + 1]
        finally:
            self.train(training)

    def beams(self, state, B, N, K, mean=True):
        """K running beams a row, and the K best that ended, by the mean or the sum of log-probabilities

        -> ids (B, K, N), best first, and these scores (B, K).
        A row is over once its best running beam is no better than the worst of K that ended.
        """
        never = -1e9
        rows = torch.arange(B, device=self.shared.weight.device)
        ids, beam_of = torch.full_like(rows, PAD).repeat(K), torch.arange(2 * K, device=rows.device)
        out = rows.new_zeros(B, K, N)
        seqs = done = out.clone()  # (b, K, N)
        done_scores = torch.full((B, K), never, device=rows.device)
        best = done_scores.clone()
        scores = done_scores.masked_fill(beam_of[:K] == 0, 0.0)  # all beams are the same at first: only one counts
        for t in range(N):
            logp = self.step(ids, t, state).log_softmax(-1).view(len(rows), K, -1)  # (b, K, V)
            top, index = (scores[:, :, None] + logp).flatten(1).topk(2 * K)  # at most K of these are EOS
            beam, token = index // logp.shape[2], index % logp.shape[2]
            seq = seqs.take_along_dim(beam[:, :, None], 1)
            seq[:, :, t] = token
            end = (token == EOS) | (t == N - 1)
            # those among the best K that end here, against those that ended before
            size = t + 1 if mean else 1
            score = torch.where(end & (beam_of < K), top / size, never)
            done_scores, i = torch.cat([done_scores, score], 1).topk(K)
            done = torch.cat([done, seq], 1).take_along_dim(i[:, :, None], 1)
            # the best K that do not end here run on
            scores, i = top.masked_fill(end, never).topk(K)
            seqs, ids, beam = seq.take_along_dim(i[:, :, None], 1), token.gather(1, i), beam.gather(1, i)
            go = (scores[:, 0] / size > done_scores[:, -1]) & (t < N - 1)
            out[rows[~go]], best[rows[~go]] = done[~go], done_scores[~go]
            if not go.any():
                break
            source = torch.arange(len(rows), device=rows.device)[:, None] * K + beam  # (b, K) rows of the cache
            state = select(state, go, source[go].flatten())
            rows, seqs, scores, done, done_scores = (x[go] for x in (rows, seqs, scores, done, done_scores))
            ids = ids[go].flatten()
        return out, best


def select(state, keep, source):
    """A decoding state with only the sources to keep (B,) of bool; source: where the cache of each row that goes on lies"""
    memory, mask = state["memory"], state["mask"]
    if not keep.all():
        memory, mask = memory[keep], mask if mask is None else mask[keep]
    return state | {"memory": memory, "mask": mask, "cache": [[x[source] for x in kv] for kv in state["cache"]]}


def shift_right(labels):
    """Decoder input of teacher forcing: start token, then all labels but the last; -100 becomes the pad id."""
    ids = F.pad(labels[:, :-1], (1, 0), value=PAD)
    return ids.masked_fill(ids < 0, PAD)


def padding_bias(attention_mask):
    """(B, S) of 1 = real, 0 = pad -> (B, 1, 1, S), 0 or MASKED; None where nothing is padded"""
    return None if attention_mask.all() else (1.0 - attention_mask[:, None, None, :].float()) * MASKED


# ----------------------------------------------------------------------------------------------------------------------
# weights in and out: Hugging Face layout

IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
AGAIN = "fetch the files again or choose another model"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
RENAME = (  # our parameter name -> Hugging Face's, in this order; N is 1 in the encoder, 2 in the decoder
    ("rel_bias.", "block.0.layer.0.SelfAttention.relative_attention_bias."),
    ("final_norm.", "final_layer_norm."),
    ("blocks.", "block."),
    ("self_norm.", "layer.0.layer_norm."),
    ("self_attn.", "layer.0.SelfAttention."),
    ("cross_norm.", "layer.1.layer_norm."),
    ("cross_attn.", "layer.1.EncDecAttention."),
    ("ff_norm.", "layer.N.layer_norm."),
    ("ff.", "layer.N.DenseReluDense."),
)
# in old checkpoints, never read by anyone: cross-attention has no position bias
ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")  # of shared.weight
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def hf_name(name):
    for ours, theirs in RENAME:
        name = name.replace(ours, theirs)
    return name.replace(".N.", ".1." if name.startswith("encoder.") else ".2.")


MAX_HEADER = 10_000_000  # bytes of a config.json, an index of shards, a safetensors header; those of T5-11B have 0.1 MB


def check_memory(size, path):
    """UserError, before any memory is taken, where `path` asks for more bytes than this machine (or container) has."""
    most = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # "max", or no such file
        most.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if size > min(most):
        raise UserError(f"{path} asks for {size / 2**30:.1f} GiB of memory, of {min(most) / 2**30:.1f} here; {AGAIN}")


def read_json(path):
    """A JSON object from a file of at most MAX_HEADER bytes"""
    try:
        with open(path, "rb") as f:
            text = f.read(MAX_HEADER + 1)
        if len(text) > MAX_HEADER:
            raise ValueError(f"more than {MAX_HEADER} bytes")
        raw = json.loads(text)
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"cannot read {path}: {e}; fetch or write the file again") from e
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object; fetch or write the file again")
    return raw


def read_config(path):
    """T5Config from a Hugging Face `config.json`: unknown keys are ignored, the six sizes must be there."""
    raw = {"num_decoder_layers": None} | read_json(path)
    if raw["num_decoder_layers"] is None:
        raw["num_decoder_layers"] = raw.get("num_layers")
    for key, want in {"model_type": "t5", **IDS}.items():
        if raw.get(key) not in (None, want):
            raise UserError(f"{path}: {key} is {raw[key]!r}, but only models with {want!r} can be read; choose another")
    values, required = {}, ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads")
    for f in fields(T5Config):
        value = values[f.name] = raw.get(f.name, None if f.name in required else f.default)
        low = 4 if "buckets" in f.name else 0 if f.name == "time_window" else 1
        high = 1000 if "layers" in f.name else 2**20
        ok, want = {
            int: (type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"),
            float: (type(value) in (int, float) and 0 <= value < 1, "a number from 0 to below 1"),
            bool: (type(value) is bool, "true or false"),
            str: (value in ("relu", "gated-gelu"), "relu or gated-gelu"),
        }[f.type]
        if not ok:
            found = "missing" if value is None else repr(value)
            raise UserError(f"{path}: {f.name} is {found}, expected {want}; {AGAIN}")
    if values["relative_attention_max_distance"] <= values["relative_attention_num_buckets"] // 2:
        names = "relative_attention_max_distance must be above half of relative_attention_num_buckets"
        raise UserError(f"{path}: {names}; {AGAIN}")
    return T5Config(**values)


def model_dir(name):
    """Directory of a model: `tiny`, a directory, or a hub id, whose files are fetched once into the cache."""
    name = str(name)
    if name == "tiny":
        return Path(__file__).resolve().parent / "assets" / "tiny-t5"
    if Path(name).is_dir():
        check_links(Path(name))
        if not (Path(name) / "config.json").exists():
            raise UserError(
                f"model {name}: no config.json in this folder; give a run or a model in Hugging Face layout"
            )
        return Path(name)
    if name.startswith("runs/"):  # where runs go by default: the hub is not asked for one that is not there yet
        there = sorted(str(path.parent) for path in Path("runs").glob("*/model.safetensors"))
        told = f"there is {', '.join(there[:5])}{', ...' * (len(there) > 5)}" if there else "there is none yet"
        raise UserError(f"model {name}: no such run ({told}); train it with: python tsqa.py --stage sft --out {name}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise UserError(f"model {name!r}: no such directory, and no hub id either; give one such as google-t5/t5-small")
    directory, hub = cache_dir() / "hub" / name, os.environ.get("TSQA_HUB") or HUB

    def fetch(file):
        if not (directory / file).exists():
            remedy = f"put it there by hand, or give an existing directory ({name} is none) with --model"
            download(f"{hub.rstrip('/')}/{name}/resolve/main/{file}", directory / file, remedy=remedy)

    fetch("config.json")
    fetch("spiece.model")
    error = None
    for file in WEIGHTS:  # a model holds one or two of these
        if weights_file(directory) is None:
            try:
                fetch(file)
            except UserError as e:
                error = error or e
    if weights_file(directory) is None:
        raise error
    for shard in shards(weights_file(directory)):
        fetch(shard)
    return directory


def check_links(directory):
    """UserError for a link in a model directory that leads out of it; within Hugging Face's cache, which is made so, it may."""
    root = directory.resolve()
    root = root.parent.parent if root.parent.name == "snapshots" else root
    for path in directory.iterdir():
        if path.is_symlink() and path.suffix in (".json", ".safetensors", ".bin", ".model"):
            target = path.resolve()
            if root not in target.parents or not target.is_file():
                raise UserError(f"{path} is a link to {target}, out of its directory; put the file itself there")
        elif path.suffix in (".safetensors", ".bin", ".model") and not path.is_file():
            raise UserError(f"{path} is no file; expected weights or a tokenizer there")


def weights_file(directory):
    return next((directory / file for file in WEIGHTS if (directory / file).exists()), None)


def shards(path):
    """Names of the files that hold the weights: those in a sharded index, which must lie beside it, or the file itself"""
    if path.suffix != ".json":
        return [path.name]
    names = read_json(path).get("weight_map")
    names = names.values() if isinstance(names, dict) else [None]
    for name in names:
        if type(name) is not str or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise UserError(f"{path}: weight_map must name files beside it, found {name!r}; {AGAIN}")
    return sorted(set(names))


def read_weights(directory):
    """All tensors of a model directory by name, from the first of WEIGHTS that is there."""
    path, state = weights_file(directory), {}
    if path is None:
        raise UserError(
            f"{directory} holds no weights: expected {WEIGHTS[0]}, {WEIGHTS[2]} or the index of their shards; {AGAIN}"
        )
    for file in shards(path):
        part = (read_safetensors if path.name.startswith("model.") else read_pickle)(directory / file)
        for name in part.keys() & state.keys():
            raise UserError(f"{directory / file}: {name} is in another file of {path.name} too; {AGAIN}")
        state |= part
    return state


def read_pickle(path):
    """Tensors of a `pytorch_model.bin` by name; nothing but tensors is unpickled, no code runs.

    UserError for what takes more memory than the file has bytes: packed archives, and tensors that repeat their numbers.
    """
    try:
        size = path.stat().st_size
        check_memory(size, path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > size:
                    raise ValueError("it is packed")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as e:  # whatever a broken or hostile file raises
        raise UserError(f"{path}: not a file of plain PyTorch tensors ({type(e).__name__}); {AGAIN}") from e
    if not isinstance(state, dict) or not all(type(k) is str and torch.is_tensor(v) for k, v in state.items()):
        raise UserError(f"{path}: expected a dictionary from names to tensors; {AGAIN}")
    if any(v.layout != torch.strided or v.device.type != "cpu" for v in state.values()):
        raise UserError(f"{path}: expected plain tensors with numbers in them; {AGAIN}")
    if sum(v.numel() * v.element_size() for k, v in state.items() if k not in ALIASES) > size:
        raise UserError(f"{path}: its tensors are larger than the file; {AGAIN}")
    return state


def read_safetensors(path):
    """Tensors of a .safetensors file by name: u64 length of the header, JSON header, data.

    Types F32, F16 and BF16. UserError, before any memory is taken, if a size or an offset does not fit the file.
    """
    spans = []  # (begin, end, name, dtype, shape), offsets counted from the end of the header
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            n = int.from_bytes(f.read(8), "little")
            if n > min(MAX_HEADER, size - 8):
                raise ValueError(f"a header of {n} bytes in a file of {size}; was it cut short?")
            check_memory(size, path)
            header = json.loads(f.read(n), object_pairs_hook=unique)
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)  # pages are read when they are looked at
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
            if dtype not in DTYPES:
                raise ValueError(f"{name:.99} is of type {dtype!s:.20}, only {', '.join(DTYPES)} can be read")
            if len(offsets) != 2 or len(shape) > 8 or not all(type(x) is int and x >= 0 for x in (*shape, *offsets)):
                raise ValueError(f"{name:.99} needs a shape and two data_offsets of whole numbers from 0 on")
            begin, end = offsets
            if end > size - 8 - n:
                raise ValueError(f"{name:.99} ends at byte {end} of {size - 8 - n}; was the file cut short?")
            if begin >= end or end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
                raise ValueError(f"data_offsets {begin} to {end} of {name:.99} do not fit {dtype} of shape {shape}")
            spans.append((begin, end, name, DTYPES[dtype], shape))
        spans.sort(key=lambda span: span[:2])
        for one, two in itertools.pairwise(spans):
            if one[1] > two[0]:
                raise ValueError(f"{one[2]} and {two[2]} overlap")
    except (AttributeError, KeyError, TypeError) as e:
        raise UserError(f"{path}: the header is no JSON of dtype, shape and data_offsets by name; {AGAIN}") from e
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"cannot read {path}: {e}; {AGAIN}") from e
    tensors = {}
    for begin, end, name, dtype, shape in spans:
        # the clone is aligned and owns its memory, wherever it lay in the file
        raw = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=8 + n + begin).clone()
        tensors[name] = raw.view(dtype).view(shape)
    return tensors


def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice in the header")
    return dict(pairs)


def write_safetensors(path, tensors, dtype=torch.float32):
    """Writes {name: tensor} in one dtype (float32, float16, bfloat16): beside `path` first, then renamed."""
    header, end, code = {"__metadata__": {"format": "pt"}}, 0, {v: k for k, v in DTYPES.items()}[dtype]
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # one tensor at a time: no second copy of the model in memory
    data = (tensor.detach().to("cpu", dtype).reshape(-1).view(torch.uint8).numpy() for tensor in tensors.values())
    write_atomic(path, itertools.chain([len(text).to_bytes(8, "little") + text], data))


def fit_weights(state, model, directory):
    """Tensors under Hugging Face names -> state dict of `model`, float32; each parameter is filled exactly once."""
    want = {hf_name(name): (name, list(p.shape)) for name, p in model.named_parameters()}
    state.pop(UNUSED, None)
    state.setdefault("time_embedding.weight", torch.zeros(want["time_embedding.weight"][1]))  # T5 itself has none
    for alias in ALIASES if model.config.tie_word_embeddings else ALIASES[:2]:
        if alias in state:  # writers keep one name of a shared tensor, and it may be any
            tensor = state.pop(alias)
            if not torch.equal(state.setdefault("shared.weight", tensor), tensor):
                raise UserError(f"{directory}: {alias} and shared.weight differ, but are one by config.json; {AGAIN}")
    faults = [f"{name} is missing" for name in want if name not in state]
    faults += [f"{name} is left over" for name in state if name not in want]
    for name in [name for name in want if name in state]:
        shape, dtype = list(state[name].shape), state[name].dtype
        if shape != want[name][1] or not dtype.is_floating_point:
            faults.append(f"{name} is {dtype} of shape {shape} in place of floats of shape {want[name][1]}")
    if faults:
        more = f" and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise UserError(f"{directory}: the weights do not fit config.json: {', '.join(faults[:8])}{more}; {AGAIN}")
    # a copy: tensors of a pickle may share their memory
    return {ours: state.pop(name).to(torch.float32, copy=True) for name, (ours, _) in want.items()}


# ----------------------------------------------------------------------------------------------------------------------
# temporal information: equations (1)-(6)


def time_marks(spans, offsets, window):
    """Marks of one text, question or context: A_q or A_c of the paper.

    spans: [(start, end)] of the time expressions, in characters; offsets: [(start, end)] of the pieces, in characters;
    window: L, in pieces. Returns a list of 0/1, one a piece. (1)(2) start from zeros, (3)(4) mark the pieces that share a
    character with a time expression, (5)(6) mark everything within L pieces of a marked piece.
    """
    times = {c for start, end in spans for c in range(start, end)}
    hit = [not times.isdisjoint(range(start, end)) for start, end in offsets]
    return [int(any(hit[max(0, i - window) : i + window + 1])) for i in range(len(hit))]


PREFIXES = ("question: ", "context: ")


def fit_contexts(tokenizer, pairs, max_source, passages="relevant"):
    """[(question, context)] -> the same, each context cut down by `data.select_passages` to what max_source leaves."""
    count, kept = lambda text: len(tokenizer.encode(text)) - 1, []
    for question, context in pairs:
        room = max_source - count(PREFIXES[0] + question) - count(PREFIXES[1]) - 1
        if room < 1:
            raise UserError(
                f"the question {question[:60]!r} leaves no room for a context in {max_source} pieces; raise --max-source"
            )
        kept.append((question, select_passages(question, context, room, count, passages)))
    return kept


def encode_sources(tokenizer, tagger, pairs, window, max_source, passages="relevant"):
    """[(question, context)] -> [(ids, marks)], each at most max_source pieces, ending in one EOS; marks of 0/1.

    The text is "question: <question> context: <context>". Windows are drawn inside the question and inside the context
    separately and concatenated after that (step 3 of section 3.1), so neither marks pieces of the other. The question
    stays whole (`fit_contexts`). tagger None: no marks (the paper's T5-SFT).
    """
    kept = fit_contexts(tokenizer, pairs, max_source, passages)
    texts = list(dict.fromkeys(text for pair in kept for text in pair))  # a context shared by questions is tagged once
    spans = vars(tagger).setdefault("known", {}) if tagger else {}  # dev texts come back in every epoch
    new = [text for text in texts if tagger and text not in spans]
    spans.update(zip(new, tagger.pipe(new) if new else (), strict=True))
    out = []
    for pair in kept:
        ids, marks = [], []
        for prefix, text in zip(PREFIXES, pair, strict=True):
            part, offsets = tokenizer.encode_with_offsets(prefix + text)
            times = [(s + len(prefix), e + len(prefix)) for s, e in spans.get(text, ())]
            ids += part[:-1]
            marks += time_marks(times, offsets[:-1], window)
        out.append((ids[: max_source - 1] + [EOS], marks[: max_source - 1] + [0]))
    return out


def collate(rows, device):
    """[(source ids, marks)] -> input_ids, attention_mask, time_marks, each (B, S)"""
    ids, mask = pad([ids for ids, _ in rows])
    assert mask[:, 0].all(), "a source without any piece"
    marks, _ = pad([marks for _, marks in rows])
    return ids.to(device), mask.to(device), marks.to(device)


# ----------------------------------------------------------------------------------------------------------------------
# a model at work: device, precision, runs, answers


def pick_device(name=None):
    """torch.device of --device; None: CUDA where there is one, else the CPU. Under torchrun each process has its own GPU."""
    name = str(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if name.startswith("cuda") and ranks()[1] > 1:
        own = f"cuda:{os.environ['LOCAL_RANK']}"
        if name not in ("cuda", own):
            raise UserError(f"--device {name}: torchrun gives each process a GPU of its own; give --device cuda")
        name = own
    try:
        if torch.zeros(1, device=name).device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        if name.startswith("cuda:"):
            torch.cuda.set_device(name)  # nccl asks for it
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0][:80]
        known = re.fullmatch(r"cpu|cuda(:\d+)?", name)
        reason = reason if known else "it is none of cpu, cuda and cuda:1"
        raise UserError(f"--device {name} cannot be used here ({reason}); give --device cpu") from None


def autocast(device, dtype):
    """Mixed precision: bfloat16 where the chip multiplies it natively (auto), else float32 throughout."""
    if dtype == "auto":
        fast = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else torch.cpu._is_avx512_bf16_supported()
        dtype = "bfloat16" if fast else "float32"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16")


@contextlib.contextmanager
def processes():
    """Joins the processes of torchrun, if it started this one: gloo between CPUs, nccl between GPUs."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
    else:
        dist.init_process_group(timeout=timedelta(hours=6))  # the others wait while the first one downloads
        yield
        dist.destroy_process_group()  # not after an error: it might wait for those that have none


def ranks():
    """(number of this process, how many there are): (0, 1) without torchrun"""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def share(items):
    """This process's part of a list: the n-th of n stretches."""
    rank, n = ranks()
    return items[len(items) * rank // n : len(items) * (rank + 1) // n]


def gather(part):
    """The whole list again, in every process, from the part of each."""
    parts = [part] * ranks()[1]
    if len(parts) > 1:
        dist.all_gather_object(parts, part)
    return [x for part in parts for x in part]


def all_reduce(x, op="SUM"):
    """Replaces the tensor x by its sum (or MAX) over the processes."""
    if ranks()[1] > 1:
        dist.all_reduce(x, getattr(dist.ReduceOp, op))


def add_up(module, figures):
    """Replaces the gradients of `module` by their sums over the processes -> the sum of the tensor `figures`"""
    if ranks()[1] == 1:
        return figures
    params = [p for p in module.parameters() if p.requires_grad]
    tensors = [torch.zeros_like(p) if p.grad is None else p.grad for p in params] + [figures]
    flat = torch.cat([x.flatten() for x in tensors])
    dist.all_reduce(flat)
    *grads, figures = (x.view_as(y) for x, y in zip(flat.split([x.numel() for x in tensors]), tensors, strict=True))
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    return figures


@contextlib.contextmanager
def together(in_turn=False):
    """A UserError of one process inside is raised in all of them, so that none waits for one that has ended.

    in_turn: the first process goes ahead, and the others find what it has downloaded. Nothing inside may wait for others.
    """
    (rank, n), error = ranks(), None
    if in_turn and rank:
        dist.barrier()
    try:
        yield
    except UserError as e:
        error = e
    if in_turn and not rank and n > 1:
        dist.barrier()
    if messages := [message for message in gather([error and str(error)]) if message]:
        raise error or UserError(messages[0])


def load_run(name, device=None, **changes):
    """A run directory, a model directory, `tiny` or a hub id -> (model, tokenizer, tagger or None, args of the run)

    changes: arguments that replace those of the run.
    """
    model = T5.from_pretrained(name).to(pick_device(device))
    directory = model_dir(name)
    path = directory / "args.json"
    args = (read_json(path) if path.is_file() else {}) | changes
    tagger = (
        None
        if args.get("no_time")
        else TimeTagger(args.get("tagger", "rules"), args.get("spacy_model", "en_core_web_sm"))
    )
    tokenizer = Tokenizer(directory)
    if not tokenizer.size <= model.config.vocab_size < tokenizer.size + 100 + 128:  # sentinels, rounded up
        raise UserError(
            f"{directory}: spiece.model has {tokenizer.size} pieces, but vocab_size in config.json is "
            f"{model.config.vocab_size}; put the tokenizer that the model was trained with there"
        )
    return model, tokenizer, tagger, args


@torch.no_grad()
def predict(
    model, tokenizer, tagger, examples, num_beams=1, batch_size=32, dtype="auto", max_new_tokens=None, passages="relevant"
):  # fmt: skip
    """Answers to a list of Examples, in their order; max_new_tokens None: as many pieces as the model was trained for."""
    c, device = model.config, model.shared.weight.device
    pairs = [(ex.question, ex.context) for ex in examples]
    rows = encode_sources(tokenizer, tagger, pairs, c.time_window, c.max_source, passages)
    out, was_training = [""] * len(rows), model.training
    model.eval()
    bar = tqdm(total=len(rows), desc="answering", unit="q", leave=False, disable=None)
    for index in batches([len(ids) for ids, _ in rows], batch_size, shuffle=False):
        with autocast(device, dtype):
            ids = model.generate(*collate([rows[i] for i in index], device), max_new_tokens or c.max_target, num_beams)
        for i, answer_ids in zip(index, ids.tolist(), strict=True):
            out[i] = tokenizer.decode(answer_ids)
        bar.update(len(index))
    bar.close()
    model.train(was_training)
    return out


def ranked_answers(model, tokenizer, tagger, question, context, dtype="float32", passages="relevant", num_beams=5):
    """Answers to one question about one text by beam search -> [(text, probability, ended)], the most probable first

    The probability is the product over the pieces, EOS included; of an answer cut off at max_target (not ended), over
    those that are there. Different pieces may spell the same text: the likelier ones count.
    """
    c, device, found = model.config, model.shared.weight.device, {}
    rows = encode_sources(tokenizer, tagger, [(question, context)], c.time_window, c.max_source, passages)
    with autocast(device, dtype):
        ids, logp = model.generate(*collate(rows, device), c.max_target, num_beams, all_beams=True)
    for row, x in zip(ids[0].tolist(), logp[0].tolist(), strict=True):
        found.setdefault(tokenizer.decode(row), (math.exp(x), EOS in row))
    return [(text, *rest) for text, rest in found.items()]


def answer(model, tokenizer, tagger, question, context):
    """The most probable answer to one question about one text, as `--stage ask` gives it."""
    return ranked_answers(model, tokenizer, tagger, question, context)[0][0]


# ----------------------------------------------------------------------------------------------------------------------
# stage 1: supervised fine-tuning


def schedule(step, steps, warmup):
    """Factor on the learning rate: linear warm-up, then linear decay that reaches 0 after the last step."""
    return (step + 1) / warmup if step < warmup else (steps - step) / max(1, steps - warmup)


def parameter_groups(named, rates):
    """Groups of AdamW: names that end in a key of `rates` get that multiple of the learning rate, all others 1.

    T5 starts the queries tiny, in place of dividing by sqrt(d_kv), and AdamW moves every weight by the learning rate,
    whatever its size: at the full rate the attention of a small model saturates, and what it can compare is lost.
    """
    groups = {rate: [] for rate in (1.0, *rates.values())}
    for name, p in named:
        groups[next((rate for end, rate in rates.items() if name.endswith(end)), 1.0)].append(p)
    return [{"params": params, "rate": rate} for rate, params in groups.items()]


def train_step(model, optimizer, rows, targets, chunks, args):
    """One optimizer step over the rows in `chunks` (lists of indices, one a forward pass) -> mean loss per target piece.

    The gradient is that of the mean over all target pieces of the step, however it is cut into chunks, and however these
    are shared by processes.
    """
    device, total = model.shared.weight.device, sum(len(targets[i]) for chunk in chunks for i in chunk)
    loss_sum = torch.zeros((), device=device)
    for chunk in filter(None, map(share, chunks)):
        ids, mask, marks = collate([rows[i] for i in chunk], device)
        labels = pad([targets[i] for i in chunk], value=-100)[0].to(device)  # (B, T)
        with autocast(device, args.dtype):
            _, loss = model(ids, mask, labels, marks)
        loss = loss * sum(len(targets[i]) for i in chunk) / total
        loss.backward()
        loss_sum += loss.detach()
    loss_sum = add_up(model, loss_sum)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss_sum.item() if math.isfinite(norm) else math.nan


def check_loss(loss, where, ids, out):
    """UserError when the loss at `where`, on the questions `ids`, is no number: no state is saved after it."""
    if not math.isfinite(loss):
        ids = ", ".join(ids[:3]) + ", ..." * (len(ids) > 3)
        raise UserError(
            f"the loss or its gradient is {loss} at {where} ({ids}); lower --lr; the last good state is in {out}"
        )


def compiled(model):
    """The same model; its encoder and decoder are compiled when they are first called. The weights keep their names."""
    model.encode, model.decode = (torch.compile(f, dynamic=True) for f in (model.encode, model.decode))
    return model


def arguments_of(args):
    """What args.json keeps: all that decides the result."""
    silent = (
        "resume",
        "overwrite",
        "out",
        "save_minutes",
        "log_every",
        "args",
        "question",
        "context",
        "html",
        "compile",
    )
    return {k: v for k, v in vars(args).items() if k not in silent}


def open_run(args):
    """The run directory of `args`, made or reused -> (Path, trainer state to resume from or None)

    UserError for a directory that holds anything else, for a damaged state, and where nothing can be written.
    """
    if not args.out.strip():
        raise UserError("--out is empty; expected the name of a folder for the run, such as runs/sft")
    out, told, state = Path(args.out), arguments_of(args), None
    path = out / "args.json"
    model, saved = told.get("model", "tiny"), (out / "trainer.pt").exists()
    if model != "tiny" and Path(model).is_dir() and Path(model).resolve() == out.resolve():
        raise UserError(f"--out {out} is the model itself; choose another directory")
    if path.is_file() and not args.overwrite:
        before = read_json(path)
        # a flag that the run did not know yet counts as not given
        differ = (k for k in told if before.get(k) != told[k] and (k in before or told[k]))
        changed = [f"{k} {before.get(k)!r} -> {told[k]!r}" for k in differ]
        if changed:
            raise UserError(f"{out} holds another run ({', '.join(changed)}); choose another --out or give --overwrite")
    if args.resume and args.overwrite:
        raise UserError("--resume goes on with a run and --overwrite replaces it; give one of them")
    if weights_file(out) and not saved and not args.overwrite:
        raise UserError(f"{out} holds a model without the state of its run; choose another --out or give --overwrite")
    if saved and not args.resume and not args.overwrite:
        raise UserError(f"{out} holds this run already; give --resume to go on with it or --overwrite to start again")
    if args.resume:
        if not path.is_file():
            raise UserError(f"--resume: there is no run in {out}; start the run without --resume")
        if saved:  # else the run was killed before it saved anything: it begins again
            state = read_trainer(out, "start again with --overwrite")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give the name of a folder")
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()  # better to fail now than after an hour
        if new:
            out.rmdir()  # what is read next may be wrong; begin_run makes it again
    except OSError as e:
        raise UserError(f"--out {out}: cannot write into this folder ({e.strerror}); choose another") from e
    return out, state


def read_trainer(out, remedy):
    """The trainer state in a run directory; UserError with the remedy where there is none, or a damaged one."""
    path = Path(out) / "trainer.pt"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not {"model", "optimizer", "step"} <= state.keys():
            raise ValueError("parts are missing")
    except Exception as e:  # whatever a missing or broken file raises
        raise UserError(f"{path} is {'damaged' if path.exists() else 'missing'} ({type(e).__name__}); {remedy}") from e
    return state


def restore(out, state, **parts):
    """Fills models and optimizers from a trainer state; UserError where it does not fit them."""
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (KeyError, RuntimeError, TypeError, ValueError) as e:
            raise UserError(f"{out / 'trainer.pt'} is of another model or release; start again with --overwrite") from e


def begin_run(out, args, state):
    """Writes into the run directory for the first time: after all input was read, so that bad input destroys nothing."""
    if ranks()[0]:
        return
    metrics = out / "metrics.jsonl"
    kept = []
    for line in metrics.read_bytes().splitlines() if state and metrics.is_file() else []:
        with contextlib.suppress(ValueError, LookupError, TypeError):  # a kill may leave half a line
            kept += [line] if json.loads(line)["step"] <= state["step"] else []
    for stale in out.glob(".*.tmp"):  # of writes that were killed
        stale.unlink(missing_ok=True)
    if not state:
        for name in ("trainer.pt", "model.safetensors"):  # of another run: nothing to resume from, nor to evaluate
            (out / name).unlink(missing_ok=True)
    write_atomic(out / "args.json", json.dumps(arguments_of(args), indent=2) + "\n")
    write_atomic(metrics, b"".join(line + b"\n" for line in kept))


def save_trainer(out, model, optimizer, step, best=None, **more):
    """Everything that --resume needs; the order of the data and dropout follow from the seed and the step."""
    if ranks()[0]:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "best": best} | more
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(out / "trainer.pt", [buffer.getbuffer()])


CARD = "<!-- Written by tsqa, anew with each better model of the run. Without this line the file is left alone. -->"
LICENCES = {"tempreason": "CC BY-SA 3.0", "timeqa": "BSD 3-clause"}  # of the data; what is generated is the project's


def write_card(out, args, scores, n_dev, step):
    """README.md of the run directory: what the model is, and the command that makes it again."""
    path, told = out / "README.md", arguments_of(args)
    if path.exists() and CARD not in path.read_text(errors="replace"):
        return  # somebody's own words
    script, start = ("ppo.py", told["ckpt"]) if "ckpt" in told else ("tsqa.py", told["model"])
    where, n = shlex.quote(str(out)), ranks()[1]
    launch = "python" if n == 1 else f"torchrun --nproc_per_node={n}"
    packages = ("torch", "numpy", "sentencepiece", "spacy")
    versions = [f"Python {sys.version.split()[0]}", *(f"{x} {importlib.metadata.version(x)}" for x in packages)]
    terms, licence = (
        ["MIT (`LICENSE` of tsqa) for the code, its model and its data"],
        LICENCES.get(args.data.split("-")[0]),
    )
    terms += [f"`{args.data}`: {licence}"] if licence else []
    terms += [f"`{start}`: see there"] if start != "tiny" else []
    write_atomic(
        path,
        f"""{CARD}

# {out.resolve().name}

A T5 that answers questions about a text in which facts hold for a time, trained by `{script}` of tsqa from `{start}`.

- Data: `{args.data}`, setting `{args.setting}`, seed {args.seed}.
- Dev scores: EM {scores["em"]:.1f}, F1 {scores["f1"]:.1f} on {n_dev} questions, at step {step}.
- Versions: {", ".join(versions)}.
- Licence: {"; ".join(terms)}.

Ask it something:

    python tsqa.py --stage ask --model {where}

In `transformers`, `T5ForConditionalGeneration.from_pretrained({str(out)!r})` loads it, without the time embedding.
The source reads `question: ... context: ...`.

Repeat the run; on the same machine, with the versions above, it gives the same bytes:

    {launch} {script} --args {where}/args.json --out {where}-again

Arguments:

```json
{json.dumps(told, indent=2)}
```
""",
    )


def log_metrics(out, **row):
    try:
        if ranks()[0] == 0:
            with open(out / "metrics.jsonl", "a") as f:
                f.write(json.dumps(row) + "\n")
    except OSError as e:
        raise UserError(f"cannot write {out / 'metrics.jsonl'} ({e.strerror}); free the place, then --resume") from e


def evaluate_dev(model, tokenizer, tagger, examples, args):
    """EM and F1 in percent, and the share of empty answers, of greedy answers to `examples`."""
    with together():
        part = predict(model, tokenizer, tagger, share(examples), dtype=args.dtype, passages=args.passages)
    predictions = gather(part)
    pairs = list(zip(predictions, (ex.answers for ex in examples), strict=True))
    em, score = (100 * sum(f(p, golds) for p, golds in pairs) / len(pairs) for f in (exact_match, f1))
    return {"em": round(em, 2), "f1": round(score, 2), "empty": round(predictions.count("") / len(pairs), 4)}


def sft(args):
    """Stage 1: fine-tune on (question, context) -> answer and keep the weights that answer the dev questions best."""
    rank, _ = ranks()
    torch.manual_seed(args.seed)
    with together(in_turn=True):
        device = pick_device(args.device)
        out, state = open_run(args)
        model, tokenizer, _, _ = load_run(args.model, device)
        tagger = None if args.no_time else TimeTagger(args.tagger, args.spacy_model)
        train, dev = (
            load_bench(args.data, args.setting, split, args.data_dir, n, args.seed, args.skip_bad)
            for split, n in (("train", args.n_train), ("dev", args.n_dev))
        )
    c = model.config
    c.time_window, c.max_source, c.max_target = args.window, args.max_source, args.max_target
    model.set_dropout(args.dropout)
    with together():
        pairs = [(ex.question, ex.context) for ex in share(train)]
        rows = encode_sources(tokenizer, tagger, pairs, args.window, args.max_source, args.passages)
    rows = gather(rows)
    golds = [[tokenizer.encode(a, args.max_target) for a in ex.answers] for ex in train]
    if cut := sum(len(ids) == args.max_target for answers in golds for ids in answers):
        print(f"{cut} answers reach --max-target {args.max_target} pieces; what is beyond is cut", file=sys.stderr)
    if args.no_time:  # else row 0, added at every piece, would be trained as a bias
        model.time_embedding.requires_grad_(False).weight.zero_()
    groups = parameter_groups(model.named_parameters(), {"q.weight": args.q_rate})
    optimizer = torch.optim.AdamW(groups, lr=args.lr, weight_decay=args.weight_decay, fused=True)
    step, best = 0, -1.0
    if state:
        restore(out, state, model=model, optimizer=optimizer)
        step, best = state["step"], state["best"]
    if args.compile:
        compiled(model)
    with together():
        begin_run(out, args, state)
        if not state:
            save_trainer(out, model, optimizer, step, best)  # from now on there is something to resume from

    per_epoch = math.ceil(len(rows) / args.batch_size)
    steps, saved, questions, start = args.epochs * per_epoch, time.time(), 0, time.time()
    bar = tqdm(total=steps, initial=step, unit="step", disable=None)
    with interruptible(lambda: f"step {step} of {steps}", state and rank == 0):
        while step < steps:
            epoch = step // per_epoch
            g = torch.Generator().manual_seed(
                args.seed * 10_007 + epoch
            )  # order and golds depend on (seed, epoch) alone
            order = list(batches([len(ids) for ids, _ in rows], args.batch_size, rng=g))
            targets = [answers[int(torch.randint(len(answers), (), generator=g))] for answers in golds]
            model.train()
            for index in order[step % per_epoch :]:
                chunks = [index[i :: args.accum] for i in range(args.accum) if index[i :: args.accum]]
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * group["rate"] * schedule(step, steps, args.warmup)
                # for dropout, which differs between processes; --resume has no state of it to restore
                torch.manual_seed(random.Random(f"sft {args.seed} {step} {rank}").getrandbits(63))
                loss = train_step(model, optimizer, rows, targets, chunks, args)
                check_loss(loss, f"step {step + 1}", [train[i].id for i in index], out)
                step, questions = step + 1, questions + len(index)
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}", qps=f"{questions / (time.time() - start):.0f}", dev=f"{best:.1f}")
                row = {"step": step, "epoch": step / per_epoch, "loss": round(loss, 5)}
                if step % args.log_every == 0:
                    log_metrics(out, **row, lr=optimizer.param_groups[0]["lr"])
                with together():
                    if time.time() - saved > args.save_minutes * 60 and step % per_epoch:
                        save_trainer(out, model, optimizer, step, best)
                        saved = time.time()
            scores = evaluate_dev(model, tokenizer, tagger, dev, args)
            log_metrics(out, **row, **{f"dev_{k}": v for k, v in scores.items()})
            bar.write(
                f"epoch {epoch + 1}/{args.epochs}: loss {loss:.3f}, dev EM {scores['em']:.1f}, F1 {scores['f1']:.1f} (n = {len(dev)}), {time.time() - start:.0f} s",
                file=sys.stderr,
            )
            better, best = scores["em"] > best, max(scores["em"], best)
            with together():
                if better and rank == 0:
                    tokenizer.save(out)
                    write_card(out, args, scores, len(dev), step)
                    model.save_pretrained(out)
                save_trainer(out, model, optimizer, step, best)
            saved = time.time()
    bar.close()
    print(f"best dev EM {best:.1f}; the model is in {out}; next: python evaluate.py --ckpt {out}")


@contextlib.contextmanager
def interruptible(where, resumed=False):
    """Ctrl-C inside: say where it stopped and how to go on; where it goes on, if it did stop before."""
    if resumed:
        print(f"going on at {where()}", file=sys.stderr)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted at {where()}; go on with: {resume_command()}", file=sys.stderr)
        raise KeyboardInterrupt("told") from None


def resume_command():
    return command("--resume", "--overwrite") + " --resume"


# ----------------------------------------------------------------------------------------------------------------------
# pretraining of the bundled tiny model, from nothing, on generated text


@torch.no_grad()
def start_pretraining(model, tokenizer):
    """What makes a small T5 learn to copy and to compare within minutes; T5's own start takes hours to get there.

    Three heads of each stack start by looking one, two and three pieces back, for a learned bias has to move far before
    attention is sharp; and the digits, like the months, start in order along one direction.
    """
    for stack in (model.encoder, model.decoder):
        stack.rel_bias.weight.normal_(std=0.5)
        for head, back in enumerate((1, 2, 3)):
            stack.rel_bias.weight[back, head] += 6.0
    line = F.normalize(torch.randn(model.config.d_model), dim=0)
    for i in range(10):
        for piece in (f"▁{i}", str(i)):
            model.shared.weight[tokenizer.sp.piece_to_id(piece)] += (i - 4.5) * line
    for i, names in enumerate(zip(MONTHS, calendar.month_name[1:], strict=True)):
        for month in set(names):
            model.shared.weight[tokenizer.sp.piece_to_id(f"▁{month}")] += 0.8 * (i - 5.5) * line


class Curriculum:
    """What is taught now: each part grows when it is mastered; the facts (l2, l3) begin when copying and comparing are.

    copy: most pieces; dates: level of data.DATE_LEVELS; match: most names; l2, l3 and prose: most facts of a context.
    events: most events of TRAVELER's kind, which are taught alone.
    """

    def __init__(self, skip=(), tasks="facts"):
        facts = {"copy": 4, "dates": 0, "match": 2, "l2": 1, "l3": 2, "prose": 2}
        self.size = {"events": 4} if tasks == "events" else facts
        self.score = dict.fromkeys(self.size, 0.0)  # running accuracy at the present size
        self.skip = list(skip)  # parts left out, for the ablation

    def shares(self):
        if "events" in self.size:
            return {"events": 1.0}
        size, score, skip = self.size, self.score, self.skip
        copied = "copy" in skip or (size["copy"] >= 20 and score["copy"] > 0.9)
        compared = ("dates" in skip or size["dates"] >= 2) and ("match" in skip or size["match"] >= 6)
        if copied and compared:
            dated, matched = (size[p] == most and score[p] > 0.95 for p, most in (("dates", 4), ("match", 12)))
            share = {"copy": 0.05, "dates": 0.05 if dated else 0.25, "match": 0.05 if matched else 0.25}
        else:
            share = (
                {"copy": 0.05, "dates": 0.6, "match": 0.35} if copied else {"copy": 0.5, "dates": 0.25, "match": 0.25}
            )
        share = {part: 0.0 if part in skip else p for part, p in share.items()}
        rest = 1 - sum(share.values()) if copied and compared else 0.0
        told = rest * 0.45 if min(size["l2"], size["l3"]) >= 4 else 0.0
        l2 = (rest - told) * (0.5 if size["l2"] < 20 else 0.25)
        return share | {"l2": l2, "l3": rest - told - l2, "prose": told}

    def update(self, part, accuracy):
        targets = {"copy": (0.9, 30, 4), "dates": (0.9, 4, 1), "match": (0.9, 12, 1), "prose": (0.85, 10, 1)}
        targets["events"] = (0.85, 12, 1)
        bar, most, more = targets.get(part, (0.85, 20, 1))
        self.score[part] += 0.05 * (accuracy - self.score[part])
        if self.score[part] > bar and self.size[part] < most:
            self.size[part] = min(most, self.size[part] + more)
            self.score[part] -= 0.05


def draw_tasks(rng, tokenizer, part, size, max_pieces):
    """One batch of tasks of the same kind, at most max_pieces source positions after padding -> (tasks, at full size?)"""
    names, full = Names(rng, "train"), size == 0 or rng.random() < 0.7
    if part == "copy":
        make = lambda: copy_task(rng, names, tokenizer, size)
    elif part == "dates":
        level = size if full else rng.randint(0, size)
        make = lambda: date_task(rng, names, tokenizer, level)
    elif part == "match":
        make = lambda: match_task(rng, names, tokenizer, size if full else rng.randint(2, size))
    elif part == "events":
        make = lambda: traveler_task(rng, tokenizer, size if full else rng.randint(3, size))
    elif part == "prose":
        k = size if full else rng.randint(2, size)
        make = lambda: fact_task(rng, names, tokenizer, k, rng.choice(("l2", "l3")), prose=True)
    else:
        k = size if full else rng.randint(1 if part == "l2" else 2, size)
        make = lambda: fact_task(rng, names, tokenizer, k, part)
    tasks, longest = [], 0
    while True:
        task = make()
        longest = max(longest, len(task.ids) + 1)
        if tasks and (len(tasks) + 1) * longest > max_pieces:
            return tasks, full
        tasks.append(task)


def pretrain_step(model, heads, optimizer, tasks, args):
    """One optimizer step on the answers and on the labels of the source pieces -> losses and accuracies

    The labels make the choice among facts learnable: from the answer alone, a wrong choice costs too little to be
    noticed. Each is read where it leaves blocks for what builds on it: the answer that the question names after block
    n - 4 (its dates have to be fetched from there), dates compared after n - 2, facts judged after n - 1, the right
    answer after the last. With all of them read after the last block, the comparisons are learned there, and the
    choice never is.
    """
    device = model.shared.weight.device
    ids, mask = (x.to(device) for x in pad([task.ids + [EOS] for task in tasks]))
    labels = pad([task.target + [EOS] for task in tasks], value=-100)[0].to(device)  # (B, T)
    told = {  # (B, S) each; the EOS of the source has no label
        name: pad([getattr(task, name) + [-100] for task in tasks], value=-100)[0].to(device) for name in LABELS
    }
    with autocast(device, args.dtype):
        memory = model.encode(ids, mask, taps=(taps := []))  # (B, S, D)
        logits = model.logits(model.decode(shift_right(labels), memory, mask))  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    aux, guess, states = 0.0, {}, dict(zip(LABELS, [taps[-5], taps[-3], taps[-2], memory], strict=True))
    for name, target in told.items():
        if (known := target >= 0).any():
            h = states[name][known].float()  # (labelled pieces, D)
            guess[name] = heads[name](F.rms_norm(h, h.shape[-1:]))
            aux = aux + F.cross_entropy(guess[name], target[known])
    (loss + aux).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    optimizer.zero_grad()
    right = (logits.argmax(-1) == labels) | (labels < 0)  # (B, T)
    sure = torch.tensor([task.sure for task in tasks], device=device)  # of several right answers any would do
    row = {
        "loss": loss.item() if math.isfinite(norm) else math.nan,
        "em": right.all(1)[sure].float().mean().item() if sure.any() else 1.0,
        "pieces": right[labels >= 0].float().mean().item(),
    }
    first = torch.arange(labels.shape[1]) < torch.tensor([task.first or len(task.target) for task in tasks])[:, None]
    row["first"] = (right | ~first.to(device)).all(1)[sure].float().mean().item() if sure.any() else 1.0
    for name, scores in guess.items():
        row[name] = (scores.argmax(-1) == told[name][told[name] >= 0]).float().mean().item()
    return row


def pretrain(args):
    """Train the tiny T5 from nothing, on generated tasks of growing difficulty; `args.out` gets 16-bit weights."""
    device = pick_device(args.device)
    torch.manual_seed(args.seed)
    out, state = open_run(args)
    tokenizer = Tokenizer(model_dir("tiny"))
    model = T5(read_config(model_dir("tiny") / "config.json"))
    model.set_dropout(0.0)
    start_pretraining(model, tokenizer)
    d = model.config.d_model
    heads = nn.ModuleDict({name: nn.Linear(d, classes) for name, classes in LABELS.items()})  # not kept
    model, heads, curriculum, step = model.to(device), heads.to(device), Curriculum(args.skip, args.tasks), 0
    model.time_embedding.weight.requires_grad_(False)  # no marks here: stage 1 starts from a time embedding of zeros
    named = [*model.named_parameters(), *heads.named_parameters()]
    groups = parameter_groups(named, {"q.weight": args.q_rate, "rel_bias.weight": 10.0})
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), weight_decay=args.weight_decay, fused=True)
    seen = {}  # figures since the last line of metrics.jsonl
    earlier = None  # a state resumed from holds all that --start gave it
    if args.start == "tiny" and not state:
        model.load_state_dict(T5.from_pretrained("tiny").state_dict())
    elif args.start and not state:
        earlier = read_trainer(args.start, "--start takes the directory of a run of --stage pretrain")
    begin_run(out, args, state)
    if state:
        restore(out, state, model=model, heads=heads, optimizer=optimizer)
        vars(curriculum).update(state["curriculum"])
        step, seen = state["step"], state.get("seen", {})
    elif earlier:
        restore(Path(args.start), earlier, model=model, heads=heads, optimizer=optimizer)
        if curriculum.size.keys() == earlier["curriculum"]["size"].keys():
            vars(curriculum).update(earlier["curriculum"] | {"skip": args.skip})

    def keep():
        save_trainer(out, model, optimizer, step, heads=heads.state_dict(), curriculum=vars(curriculum), seen=seen)

    if not state:
        keep()
    bar = tqdm(total=args.steps, initial=step, unit="step", disable=None)
    begun = saved = time.time()
    with interruptible(lambda: f"step {step} of {args.steps}", state):
        while step < args.steps:
            rng_name = f"pretrain {args.seed} {step}"
            rng = random.Random(rng_name)  # the batch depends on (seed, step, curriculum) alone
            shares = curriculum.shares()
            part = rng.choices(list(shares), list(shares.values()))[0]
            tasks, full = draw_tasks(rng, tokenizer, part, curriculum.size[part], args.max_pieces)
            for group in optimizer.param_groups:
                group["lr"] = args.lr * group["rate"] * schedule(step, args.steps, args.warmup)
            row = pretrain_step(model, heads, optimizer, tasks, args)
            check_loss(row["loss"], f"step {step + 1}", [f"a batch of {part}, by random.Random({rng_name!r})"], out)
            step += 1
            if full:
                curriculum.update(part, row[{"copy": "pieces", "dates": "dates", "match": "named"}.get(part, "first")])
            for key in row:
                seen.setdefault(f"{part}_{key}", []).append(row[key])
            bar.update()
            bar.set_postfix({p: f"{curriculum.size[p]}/{curriculum.score[p]:.2f}" for p in curriculum.size})
            if step % args.log_every == 0:
                means = {key: round(sum(x) / len(x), 4) for key, x in sorted(seen.items())}
                log_metrics(
                    out,
                    step=step,
                    seconds=round(time.time() - begun),
                    **means,
                    **{f"{p}_size": n for p, n in curriculum.size.items()},
                )
                seen = {}
            if time.time() - saved > args.save_minutes * 60 or step == args.steps:
                tokenizer.save(out)
                model.save_pretrained(out, dtype=torch.float16)
                keep()
                saved = time.time()
    bar.close()
    print(
        f"the weights are in {out}, in 16 bits; copy config.json and model.safetensors to assets/tiny-t5 to bundle them"
    )


# ----------------------------------------------------------------------------------------------------------------------
# command line

PAPER = {"lr": 5e-6, "batch_size": 8, "epochs": 6, "window": 10, "tagger": "ner", "warmup": 0, "max_source": 512}
PAPER |= {"dropout": 0.1, "q_rate": 1.0}  # the paper gives none: T5's own dropout, plain AdamW
EVENTS = {"max_source": 320, "passages": "words", "n_train": 8000}  # of --data traveler: some 10 of up to 100 events
STAGES = {  # defaults of each, where they differ from those in the help; None: as the model was trained
    "sft": {},
    "pretrain": {"lr": 1e-3, "warmup": 100, "log_every": 100, "out": "runs/pretrain"},
    "ask": dict.fromkeys("no_time window tagger spacy_model passages max_source max_target".split())
    | {"model": None, "dtype": "float32"},
}
EXAMPLES = """examples:
  python tsqa.py --stage sft
      fine-tune the bundled model on generated questions; writes runs/sft
  python tsqa.py --model google-t5/t5-base --data tempreason-l2 --paper
      the paper's set-up, with official files and weights
  python tsqa.py --stage ask --context facts.txt
      questions about a text, from the keyboard
"""


def flags_of_run(p, argv):
    """The flags that the file of --args holds, the args.json of a run; p: parser of argv, in which --args may be."""
    path, flags = p.parse_known_args(argv)[0].args, []
    for name, value in (read_json(path) if path else {}).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, list):
            flags += [flag, *map(str, value)]
        elif value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={value}")
    return flags


def parse_args(argv=None):
    about = "Fine-tune a T5 with the temporal embedding, pretrain the tiny one, or ask it."
    p = argparse.ArgumentParser(description=about, epilog=EXAMPLES, formatter_class=Help)
    whole, real, choice = functools.partial(number, int), functools.partial(number, float), ("rules", "ner", "both")
    used = {}  # flag -> the stages that it has a part in, as the title of its group says

    def group(title):
        g = p.add_argument_group(title)

        def add(flag, **how):
            used[g.add_argument(flag, **how).dest] = [stage for stage in STAGES if stage in title.split("(")[1]]

        return add

    add = group("every stage (sft, pretrain, ask)")
    add("--stage", choices=tuple(STAGES), default="sft", help="what to do")
    add("--device", help="cpu, cuda or cuda:1 (default: cuda, if any, else cpu)")
    kinds, told = ("auto", "float32", "bfloat16"), "auto: bfloat16 where fast (default: %(default)s; ask: float32)"
    add("--dtype", choices=kinds, default="auto", help=told)
    add = group("model (sft; ask, where the default is what the model was trained with)")
    add("--model", default="tiny", help="tiny, a directory or a hub id (default: %(default)s; ask: runs/sft, if there)")
    add("--no-time", action="store_true", help="without the temporal embedding (the paper's T5-SFT)")
    add("--window", type=whole(0, 10**6), default=10, help="L of (5): pieces marked on each side of a time")
    add("--tagger", choices=choice, default="rules", help="finder of time expressions")
    add("--spacy-model", metavar="NAME", default="en_core_web_sm", help="of --tagger ner and both")
    add("--passages", choices=PASSAGES, default="relevant", help="kept of a long text (traveler: words)")
    add("--max-source", type=whole(32, 10**6), default=1024, help="pieces of question and context (traveler: 320)")
    add("--max-target", type=whole(2, 10**4), default=64, help="pieces of an answer")
    add = group("data (sft)")
    add("--data", choices=BENCHES, default="mini", metavar="NAME", help=", ".join(BENCHES))
    add("--setting", choices=("reason", "obqa", "mix"), help="facts, prose, or (mini) both (default: mix, else reason)")
    add("--data-dir", metavar="DIR", help="folder of the official files (default: the download cache)")
    add("--skip-bad", action="store_true", help="leave out wrong lines of data files, and count them (default: stop)")
    add("--n-train", type=whole(1, 10**9), help="training questions (default: all; mini: 5000; traveler: 8000)")
    add("--n-dev", type=whole(1, 10**9), help="dev questions (default: all; generated: 300)")
    add = group("training (sft)")
    add("--paper", action="store_true", help="all of the paper's settings as defaults")
    add("--batch-size", type=whole(1, 10**6), default=32, help="questions of an optimizer step")
    add("--accum", type=whole(1, 10**6), default=1, help="forward passes that share a step, to save memory")
    add("--epochs", type=whole(1, 10**6), default=1, help="passes over the training questions")
    add("--dropout", type=real(0, 0.99), default=0.0, help="T5's six dropouts")
    add = group("optimizer (sft, pretrain)")
    add("--lr", type=real(0, 10), default=5e-4, help="peak rate of AdamW (default: %(default)s; pretrain: 0.001)")
    add("--warmup", type=whole(0, 10**9), default=20, help="steps of warm-up (default: %(default)s; pretrain: 100)")
    add("--weight-decay", type=real(0, 10), default=0.0, help="of AdamW")
    add("--q-rate", type=real(0, 10), default=0.1, help="multiple of --lr for the query weights; 1 for large models")
    add("--clip", type=real(1e-9, 1e9), default=1.0, help="largest gradient norm")
    add("--seed", type=whole(0, 2**31), default=0, help="of data, order and dropout")
    add = group("compiler (sft)")
    add("--compile", action="store_true", help="torch.compile: a minute or more to start; slower than without on CPUs")
    add = group("run (sft, pretrain)")
    add("--out", metavar="DIR", default="runs/sft", help="of the run (default: %(default)s; pretrain: runs/pretrain)")
    add("--args", metavar="FILE", help="args.json of a run: its arguments, where no flag says otherwise")
    add("--resume", action="store_true", help="go on with an interrupted run of the same arguments")
    add("--overwrite", action="store_true", help="replace another run in --out")
    add("--save-minutes", type=real(0, 10**6), default=2, help="between states for --resume")
    add("--log-every", type=whole(1, 10**9), default=10, help="steps a line of metrics.jsonl (pretrain: 100)")
    add = group("curriculum (pretrain)")
    add("--steps", type=whole(1, 10**9), default=6000, help="optimizer steps")
    add("--max-pieces", type=whole(512, 10**9), default=3000, help="source pieces of a step")
    add("--tasks", choices=("facts", "events"), default="facts", help="facts, or TRAVELER's household events")
    add("--start", metavar="DIR", help="a run of this stage, or tiny, to go on from (default: from nothing)")
    parts = ("copy", "dates", "match")
    add("--skip", nargs="*", choices=parts, default=[], metavar="PART", help=f"of {', '.join(parts)}: not taught")
    add = group("question (ask)")
    add("--question", metavar="TEXT", help="the question (default: several, from the keyboard)")
    add("--context", metavar="TEXT", help="its text, or a file that holds it (default: from the keyboard)")
    add("--html", metavar="FILE", help="draw the times and windows of the (last) question")
    argv = sys.argv[1:] if argv is None else list(argv)
    told, defaults = flags_of_run(p, argv) + argv, vars(p.parse_args([]))  # the former prints the help, too
    p.set_defaults(**dict.fromkeys(defaults))
    given = lambda flags: {name: value for name, value in vars(p.parse_args(flags)).items() if value is not None}
    told = given(told)
    stage = told.get("stage", "sft")
    for name in given(argv):
        if stage not in used[name]:
            where = " or ".join(used[name])
            raise UserError(f"--{name.replace('_', '-')} is for --stage {where}; leave it out of --stage {stage}")
    events = EVENTS if told.get("data") == "traveler" else {}
    args = argparse.Namespace(**defaults | (PAPER if "paper" in told else {}) | STAGES[stage] | events | told)
    generated = args.data in GENERATED
    args.setting = args.setting or ("mix" if args.data.startswith("mini") else "reason")
    args.n_train, args.n_dev = args.n_train or (5000 if generated else None), args.n_dev or (300 if generated else None)
    return args


# ----------------------------------------------------------------------------------------------------------------------
# ask


def read_context(text):
    """The words of the file `text` where there is one, else `text` itself."""
    try:
        raw = Path(text).read_bytes() if Path(text).is_file() else None
    except (OSError, ValueError) as e:
        if isinstance(e, ValueError) or e.errno == errno.ENAMETOOLONG:  # a text: too long for a name
            return text
        raise UserError(f"--context {text}: cannot be read ({e.strerror}); give a text or a file") from e
    if raw is None and re.fullmatch(r"\S+\.\w{1,5}|\S*/\S*", text):
        there = "is a folder" if Path(text).is_dir() else "there is no such file"
        raise UserError(f"--context {text}: {there}; give a text or a file that holds it")
    try:
        return text if raw is None else " ".join(raw.decode("utf-8-sig").split())
    except UnicodeDecodeError as e:
        raise UserError(f"--context {text}: byte {e.start + 1} is not UTF-8; save the file as UTF-8") from None


def checked(flag, text):
    if not text.strip() or re.search("[\ud800-\udfff]", text):
        raise UserError(f"{flag} is {'no valid Unicode' if text.strip() else 'blank'}; expected text")
    return text


def draw(parts, answers, tokenizer, window):
    """A page (bytes) by spaCy's displaCy: lines of answers, then [(text, time spans)] with the times and their windows."""
    key = [{"start": 0, "end": 4, "label": "time"}, {"start": 6, "end": 12, "label": "window"}]
    docs = [{"text": "\n".join(answers), "ents": []}, {"text": f"time, window ({window} pieces)", "ents": key}]
    for text, times in parts:
        labels = [""] * len(text)  # one a character
        _, offsets = tokenizer.encode_with_offsets(text)
        for (start, end), mark in zip(offsets, time_marks(times, offsets, window), strict=True):
            labels[start:end] = ["window" * mark] * (end - start)
        for start, end in times:
            labels[start:end] = ["time"] * (end - start)
        docs.append({"text": text, "ents": (ents := [])})
        for label, places in itertools.groupby(range(len(text)), labels.__getitem__):
            first, *_, last = [*places] * 2
            ents += [{"start": first, "end": last + 1, "label": label}] if label else []
    mark = '<mark title="{label}" style="background: {bg}">{text}</mark>'
    look = {"colors": {"time": "#ffb000", "window": "#d6e4ff"}, "template": mark}
    body = displacy.render(docs, "ent", manual=True, jupyter=False, options=look)
    style = "font: 16px sans-serif; max-width: 46rem; margin: 1rem auto; padding: 0 1rem; background: #fff; color: #000"
    return f'<!DOCTYPE html><meta charset="utf-8"><title>tsqa</title><body style="{style}">\n{body}</body>\n'.encode()


def in_colour():
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def reply(args, model, tokenizer, tagger, context, question):
    """Prints the answer to one question and what `--stage ask` tells about it; draws it where --html says."""

    def shown(text, code):
        text = re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", text)  # what comes out of a text must not steer the terminal
        return f"\033[{code}m{text}\033[0m" if in_colour() else text

    c, question = model.config, checked("--question", question)
    answers = [
        (text or "(no answer)", f"{100 * p:.2f} %" + ("" if ended else f", cut off at --max-target {c.max_target}"))
        for text, p, ended in ranked_answers(model, tokenizer, tagger, question, context, args.dtype, args.passages)
    ]
    print(shown(answers[0][0], 1))
    print(f"probability: {answers[0][1]}")
    print("runners-up:", *([f"  {shown(text, 2)} ({p})" for text, p in answers[1:]] or ["  none"]), sep="\n")
    ((_, kept),), parts = fit_contexts(tokenizer, [(question, context)], c.max_source, args.passages), []
    for prefix, text in zip(PREFIXES, (question, kept), strict=True):
        times = tagger.spans(text) if tagger else []
        found = dict.fromkeys(shown(text[start:end], 36) for start, end in times)
        none = "none" if tagger else "not looked for (--no-time)"
        print(f"times in the {prefix}{'; '.join(found) or none}")
        parts.append((prefix + text, [(start + len(prefix), end + len(prefix)) for start, end in times]))
    whole, rest = (len(tokenizer.encode(text)) - 1 for text in (context, kept))
    if rest < whole:
        print(f"dropped: {whole - rest} of {whole} pieces of the context; raise --max-source {c.max_source}")
    if args.html:
        first, *rest = [f"{text} ({p})" for text, p in answers]
        lines = [f"answer: {first}", f"runners-up: {'; '.join(rest) or 'none'}"]
        write_atomic(args.html, draw(parts, lines, tokenizer, c.time_window))
        print(f"drawn in {args.html}", file=sys.stderr)


def fallback():
    """The model where none is given, and a line that says which: runs/sft if it is there, else `tiny`."""
    if weights_file(Path("runs/sft")):
        print("no --model: using runs/sft", file=sys.stderr)
        return "runs/sft"
    told = "using the bundled model, which cannot answer yet; train one with: python tsqa.py --stage sft"
    print(f"no --model, and no runs/sft: {told}", file=sys.stderr)
    return "tiny"


def ask(args):
    """One question, or those that come from the keyboard or a pipe, one a line, until a blank line."""
    if args.context is None and not sys.stdin.isatty():
        raise UserError("--stage ask needs --context (a text or a file), or a terminal to ask for it")
    if args.question is not None:
        checked("--question", args.question)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # editing; and without it a terminal cuts lines at 4,095 characters
    with contextlib.suppress(EOFError):
        context = args.context if args.context is not None else input("context, a text or a file: ")
        context = checked("--context", read_context(context))
        changes = {k: getattr(args, k) for k in ("no_time", "tagger", "spacy_model") if getattr(args, k) is not None}
        name = args.model or fallback()
        model, tokenizer, tagger, told = load_run(name, args.device, **changes)
        c = model.config
        c.time_window = c.time_window if args.window is None else args.window
        c.max_source, c.max_target = args.max_source or c.max_source, args.max_target or c.max_target
        args.passages = args.passages or told.get("passages", "relevant")
        if args.question is not None:
            return reply(args, model, tokenizer, tagger, context, args.question)
        prompt = "question: " if sys.stdin.isatty() else ""  # piped questions: one a line
        print(f"{name} is ready; a blank line ends", file=sys.stderr)
        while question := input(prompt).strip():
            try:
                reply(args, model, tokenizer, tagger, context, question)
            except UserError as e:
                print(f"error: {e}", file=sys.stderr)


def main(argv=None):
    args = parse_args(argv)
    if args.stage != "sft" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(f"--stage {args.stage} runs in one process; start it with python in place of torchrun")
    with processes():
        {"sft": sft, "pretrain": pretrain, "ask": ask}[args.stage](args)


if __name__ == "__main__":
    run(main)
