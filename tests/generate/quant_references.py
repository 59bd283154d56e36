#!/usr/bin/env python3
"""Makes tests/data/quant/references.safetensors: what float64 numpy gives for SmoothQuant, AWQ and GPTQ.

Written from the papers' formulas, without hexport's code. Made with numpy 2 and safetensors 0.8; the seed is fixed
below. Run from any folder:
    python3 tests/generate/quant_references.py
  rows [tokens, in], weights.<n> [in, out]     an activation with outlier channels and one dead channel; its two readers
  smoothquant.factors, .codes.<n>, .scales.<n> int8 per output channel of the scaled weights (arXiv:2211.10438, eq. 4)
  awq.alpha, .factors, .codes.<n>, ...         LPBQ of block 16 after the search over alpha (arXiv:2306.00978, eq. 4, 5)
  gptq.codes, gptq_act_order.codes             LPBQ of block 16 of weights.0 (arXiv:2210.17323, algorithm 1)
"""
import pathlib

import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "quant"
TOKENS, IN, OUTS, BLOCK = 96, 64, (24, 16), 16
DEAD, OUTLIERS = 7, {3: 30.0, 40: 60.0}
DAMPING = 0.01


def make_problem():
    random = np.random.default_rng(20261203)
    mix = random.normal(size=(12, IN))
    rows = random.normal(size=(TOKENS, 12)) @ mix + 0.3 * random.normal(size=(TOKENS, IN))
    for channel, factor in OUTLIERS.items():
        rows[:, channel] *= factor
    rows[:, DEAD] = 0.0
    weights = [0.05 * random.standard_t(5, size=(IN, out)) for out in OUTS]
    return rows.astype(np.float32), [w.astype(np.float32) for w in weights]


def round_int8(w):
    scales = np.maximum(np.abs(w).max(axis=0) / 127.0, 1e-9)
    return np.clip(np.rint(w / scales), -128, 127), scales


def lpbq_scales(w):
    """Integer block scales 1..16 of the channel's largest / 16, each the one near it with the least squared error."""
    blocks = w.reshape(IN // BLOCK, BLOCK, -1)
    largest = np.abs(blocks).max(axis=1) / 7.0
    channel = np.maximum(largest.max(axis=0) / 16.0, 1e-9)
    rounded = np.clip(np.rint(largest / channel), 1, 16)
    best, least = rounded.copy(), np.full(rounded.shape, np.inf)
    for step in (0, -4, -3, -2, -1, 1):
        integers = rounded + step
        scale = np.maximum(integers, 1) * channel
        codes = np.clip(np.rint(blocks / scale[:, None]), -8, 7)
        error = ((blocks - codes * scale[:, None]) ** 2).sum(axis=1)
        better = (integers >= 1) & (integers <= 16) & (error < least)
        best, least = np.where(better, integers, best), np.where(better, error, least)
    return channel, best


def round_lpbq(w):
    channel, integers = lpbq_scales(w)
    scale = np.repeat(integers * channel, BLOCK, axis=0)
    codes = np.clip(np.rint(w / scale), -8, 7)
    return codes, scale, channel, integers


def smoothquant(rows, weights):
    x = np.abs(rows).max(axis=0)
    w = np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0)
    alive = (x > 0) & (w > 0)
    return np.where(alive, np.sqrt(np.where(alive, x, 1.0)) / np.sqrt(np.where(alive, w, 1.0)), 1.0)


def awq(rows, weights):
    mean = np.abs(rows).mean(axis=0)
    best = (np.inf, 0.0, np.ones(IN))
    for step in range(20):
        alpha = step / 20
        factors = np.where(mean > 0, np.where(mean > 0, mean, 1.0) ** alpha, 1.0)
        if step > 0:
            factors[mean > 0] /= np.sqrt(factors[mean > 0].max() * factors[mean > 0].min())
        error = 0.0
        for weight in weights:
            codes, scale, _, _ = round_lpbq(weight * factors[:, None])
            error += ((rows @ (codes * scale / factors[:, None] - weight)) ** 2).sum()
        if error < best[0]:
            best = (error, alpha, factors)
    return best[1], best[2]


def gptq(rows, weight, act_order):
    channel, integers = lpbq_scales(weight)
    scale = np.repeat(integers * channel, BLOCK, axis=0)
    h = rows.T @ rows
    mean = np.trace(h) / IN
    order = np.argsort(-np.diag(h), kind="stable") if act_order else np.arange(IN)
    h = h + np.diag(np.where(np.diag(h) > 0, DAMPING * mean, mean))  # a dead feature stands alone
    inverse = np.linalg.inv(h[np.ix_(order, order)])
    upper = np.linalg.cholesky(inverse).T
    remaining, codes = weight[order].copy(), np.zeros_like(weight)
    for i, feature in enumerate(order):
        codes[feature] = np.clip(np.rint(remaining[i] / scale[feature]), -8, 7)
        error = (remaining[i] - codes[feature] * scale[feature]) / upper[i, i]
        remaining[i + 1:] -= np.outer(upper[i, i + 1:], error)
    return codes


def main():
    rows32, weights32 = make_problem()
    rows, weights = rows32.astype(np.float64), [w.astype(np.float64) for w in weights32]
    out = {"rows": rows32, **{f"weights.{n}": w for n, w in enumerate(weights32)}}
    factors = smoothquant(rows, weights)
    out["smoothquant.factors"] = factors.astype(np.float32)
    for n, weight in enumerate(weights):
        codes, scales = round_int8(weight * factors[:, None])
        out[f"smoothquant.codes.{n}"] = codes.astype(np.int8)
        out[f"smoothquant.scales.{n}"] = scales.astype(np.float32)
    alpha, factors = awq(rows, weights)
    assert 0 < alpha < 1, alpha
    out["awq.alpha"] = np.array([alpha], np.float32)
    out["awq.factors"] = factors.astype(np.float32)
    for n, weight in enumerate(weights):
        codes, _, _, integers = round_lpbq(weight * factors[:, None])
        out[f"awq.codes.{n}"] = codes.astype(np.int8)
        out[f"awq.block_scales.{n}"] = integers.astype(np.uint8)
    out["gptq.codes"] = gptq(rows, weights[0], False).astype(np.int8)
    out["gptq_act_order.codes"] = gptq(rows, weights[0], True).astype(np.int8)
    OUT.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in out.items()}, OUT / "references.safetensors")


if __name__ == "__main__":
    main()
