"""Small ReLU networks as flat float32 vectors, with hand-written passes for compiled loops.

A network K -> H -> H -> 1 is one vector: W1 [K, H], b1 [H], W2 [H, H], b2 [H], w3 [H], b3. So the networks of all
seeds and firms stack into one array, and the optimiser is one loop. The products go to BLAS through ``np.dot``; the
rest are loops over contiguous rows, which the compiler turns into vector instructions.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Singles
from stretto.tabular.counter import normals

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
_TINY = np.float32(1e-30)  # moments below are zero: a decaying one would else end as a slow denormal
_ZERO = np.float32(0)


def size(inputs: int, hidden: int) -> int:
    """How many parameters a network with ``inputs`` inputs and two hidden layers of ``hidden`` units has."""
    return inputs * hidden + hidden + hidden * hidden + hidden + hidden + 1


def he(key: np.uint64, inputs: int, hidden: int, last: float) -> Singles:
    """Fresh parameters: He initialisation (normal, variance 2 / inputs of the layer) with the last layer times
    ``last``, biases zero; draws 0 .. of ``key``."""
    draws = normals(key, inputs * hidden + hidden * hidden + hidden)
    first, second, third = np.split(draws, [inputs * hidden, inputs * hidden + hidden * hidden])
    scale = math.sqrt(2 / hidden)
    zeros = np.zeros(hidden)
    return np.concatenate(
        [first * math.sqrt(2 / inputs), zeros, second * scale, zeros, third * scale * last, [0.0]]
    ).astype(np.float32)


def layers(theta: Singles, inputs: int, hidden: int) -> tuple[Singles, ...]:
    """Weights and biases W1, b1, W2, b2, w3, b3 as views into the flat parameters ``theta`` [.., size]."""
    ends = np.cumsum([inputs * hidden, hidden, hidden * hidden, hidden, hidden])
    w1, b1, w2, b2, w3, b3 = np.split(theta, ends, axis=-1)
    lead = theta.shape[:-1]
    return w1.reshape(*lead, inputs, hidden), b1, w2.reshape(*lead, hidden, hidden), b2, w3, b3


def evaluate(theta: Singles, x: ArrayLike) -> Singles:
    """Outputs [.., n] of networks ``theta`` [.., size] at ``x`` [.., n, K], before any squashing."""
    x = np.asarray(x, np.float32)
    inputs = x.shape[-1]
    # size = h^2 + (K + 3) h + 1
    hidden = round((-(inputs + 3) + math.sqrt((inputs + 3) ** 2 + 4 * (theta.shape[-1] - 1))) / 2)
    w1, b1, w2, b2, w3, b3 = layers(theta, inputs, hidden)
    h = np.maximum(x @ w1 + b1[..., None, :], 0)
    h = np.maximum(h @ w2 + b2[..., None, :], 0)
    return np.asarray((h @ w3[..., None])[..., 0] + b3)


@njit(cache=True, error_model="numpy")
def views(theta: Singles, inputs: int, hidden: int) -> tuple[Singles, Singles, Singles, Singles, Singles, Singles]:
    """``layers`` for compiled loops (b3 as an array of one). A loop that indexes a view from zero is compiled to vector
    instructions; one that adds an offset isn't, since the index might be negative."""
    ends = inputs * hidden, inputs * hidden + hidden
    end = ends[1] + hidden * hidden
    w1, b1 = theta[: ends[0]].reshape((inputs, hidden)), theta[ends[0] : ends[1]]
    w2, b2 = theta[ends[1] : end].reshape((hidden, hidden)), theta[end : end + hidden]
    return w1, b1, w2, b2, theta[end + hidden : end + 2 * hidden], theta[end + 2 * hidden :]


@njit(cache=True, error_model="numpy")
def _rectify(h: Singles, bias: Singles) -> None:
    """max(h + bias, 0) [B, H], in place."""
    for b in range(h.shape[0]):
        row = h[b]
        for k in range(h.shape[1]):
            z = row[k] + bias[k]
            row[k] = z if z > _ZERO else _ZERO


@njit(cache=True, error_model="numpy")
def forward(theta: Singles, x: Singles, h1: Singles, h2: Singles, out: Singles) -> None:
    """Activations of both hidden layers [B, H] and the output [B] of a network at ``x`` [B, K]."""
    rows, inputs = x.shape
    hidden = h1.shape[1]
    w1, b1, w2, b2, w3, b3 = views(theta, inputs, hidden)
    np.dot(x, w1, h1)
    _rectify(h1, b1)
    np.dot(h1, w2, h2)
    _rectify(h2, b2)
    np.dot(h2, w3, out)
    bias = b3[0]
    for b in range(rows):
        out[b] += bias


@njit(cache=True, error_model="numpy")
def back_hidden(
    theta: Singles, inputs: int, slope: Singles, h1: Singles, h2: Singles, d1: Singles, d2: Singles, flip: Singles
) -> None:
    """Slopes [B, H] at the inputs of both hidden layers, from ``slope`` [B] at the output. ``flip`` [H, H] is
    scratch: turning W2 over first costs less than a product with a transposed matrix."""
    rows, hidden = h1.shape
    _, _, w2, _, w3, _ = views(theta, inputs, hidden)
    for b in range(rows):
        value, row, on = slope[b], d2[b], h2[b]
        for h in range(hidden):
            z = value * w3[h]
            row[h] = z if on[h] > _ZERO else _ZERO
    for k in range(hidden):
        row = flip[k]
        for h in range(hidden):
            row[h] = w2[h, k]
    np.dot(d2, flip, d1)
    for b in range(rows):
        row, on = d1[b], h1[b]
        for h in range(hidden):
            z = row[h]
            row[h] = z if on[h] > _ZERO else _ZERO


@njit(cache=True, error_model="numpy")
def back_weights(grad: Singles, x: Singles, slope: Singles, h1: Singles, h2: Singles, d1: Singles, d2: Singles) -> None:
    """Writes the gradient of sum_b slope_b out_b by the parameters into ``grad``, after ``back_hidden``."""
    rows, inputs = x.shape
    hidden = h1.shape[1]
    w1, b1, w2, b2, w3, b3 = views(grad, inputs, hidden)
    for h in range(hidden):
        b1[h] = b2[h] = _ZERO
    for b in range(rows):
        low, high = d1[b], d2[b]
        for h in range(hidden):
            b1[h] += low[h]
            b2[h] += high[h]
    np.dot(x.T, d1, w1)
    np.dot(h1.T, d2, w2)
    np.dot(h2.T, slope, w3)
    b3[0] = slope.sum()


@njit(cache=True, error_model="numpy")
def adam(
    theta: Singles, grad: Singles, m: Singles, v: Singles, step: int, rate: float, target: Singles, soft: float
) -> None:
    """One step (number ``step`` = 1, 2, ..) of Adam (Kingma and Ba 2015, with PyTorch's eps outside the root), then
    ``target`` += soft (theta - target)."""
    b1, b2 = np.float32(BETA1), np.float32(BETA2)
    c1, c2 = np.float32(1 - BETA1), np.float32(1 - BETA2)
    size1, root2 = np.float32(rate / (1 - BETA1**step)), np.float32(1 / math.sqrt(1 - BETA2**step))
    eps, tau = np.float32(EPS), np.float32(soft)
    for p in range(theta.size):
        g = grad[p]
        first, second = b1 * m[p] + c1 * g, b2 * v[p] + c2 * g * g
        first = first if abs(first) > _TINY else _ZERO
        m[p], v[p] = first, second
        theta[p] -= size1 * first / (np.sqrt(second) * root2 + eps)
        target[p] += tau * (theta[p] - target[p])
