"""gpt_reference.py - GPT-2 in PyTorch, in float64 (the truth), float32, bfloat16 and float8: what the C program is compared with

Written from the papers and from the format documents, never from the C sources, so that one error cannot hide in both.

The network  [Radford et al. 2019; layernorm Ba et al. 2016; GELU Hendrycks & Gimpel 2016, tanh form; attention Vaswani et al. 2017]
    r = wte[token] + wpe[position];  per layer:  r += attproj(attention(qkv(ln1(r))));  r += fcproj(gelu(fc(ln2(r))))
    logits = lnf(r) wte^T;  loss = mean cross entropy over the B*T tokens
float64, float32   every operation in that type, gradients by autograd.
bfloat16           tensors that a training program keeps in memory are rounded to BF16 where they are made: weights, residual stream, layernorm outputs, qkv,
                   attention probabilities and output, h, gelu(h), each branch, logits; and so are the gradients of all of them, of the attention
                   scores, and of the linear layers' weights. Arithmetic in between, and all other parameter gradients, are float32.
float8             bfloat16, but each product of the four linear layers of a block reads two operands quantized by a recipe:
                   y = x W^T, dx = dy W, dW = dy^T x, each accumulated in float32 over the dequantized values.

A BF16 or FP8 number is held as the float32 of the same value: all is plain float32 arithmetic, which runs anywhere (torch 1.13 knows no FP8), with sums
in float32 as on tensor cores. A new recipe is one function at "recipes" below, and one line at "precisions".
Tests: dev/check_reference.py
"""
import math
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F

# ---------------------------------------------------------------------------- rounding


def bf16(x):
    """The nearest BF16 of each element (ties to even), as float32."""
    return x.to(torch.bfloat16).to(torch.float32)


# A format: bits of mantissa, exponent of the smallest normal number, largest finite value, its code.   [OCP 8-bit floating point specification 1.0]
Format = namedtuple("Format", "name number mantissa min_exponent max max_code")
E4M3 = Format("E4M3", 0, 3, -6, 448.0, 0x7e)
E5M2 = Format("E5M2", 1, 2, -14, 57344.0, 0x7b)
FP8_NAN = 0x7f  # in both formats, without a sign: what CUDA's conversion from float gives


def power_of_two(e):
    """2^e for an int32 tensor, -126 <= e <= 127."""
    return ((e + 127) << 23).view(torch.float32)


def fp8_encode(x, f):
    """Codes (uint8) of float32 x: to nearest, ties to even; beyond the largest finite value, infinity included: the largest; NaN: FP8_NAN."""
    a = x.abs().clamp(max=2 * f.max)  # twice the largest still saturates
    a = torch.where(torch.isnan(a), torch.zeros_like(a), a)
    e = ((a.view(torch.int32) >> 23) - 127).clamp(min=f.min_exponent)
    steps = torch.round(a / power_of_two(e - f.mantissa)).to(torch.int32)  # exact but for the rounding, which is to even; at most 2^(mantissa + 1)
    # exponent field and mantissa are one integer: a mantissa that rounds up to 2^(mantissa + 1) carries into the exponent by itself
    code = (((e - f.min_exponent) << f.mantissa) + steps).clamp(max=f.max_code)
    code = code | ((x.view(torch.int32) >> 31) & 0x80)
    return torch.where(torch.isnan(x), torch.full_like(code, FP8_NAN), code).to(torch.uint8)


def fp8_decode(code, f):
    """float32 values of codes, which are not those of a NaN (nor of E5M2's infinity)."""
    a = code.to(torch.int32) & 0x7f
    exponent = a >> f.mantissa
    steps = a - ((exponent - 1).clamp(min=0) << f.mantissa)  # mantissa with its hidden bit, of which numbers of exponent 0 have none
    value = steps.to(torch.float32) * power_of_two((exponent - 1).clamp(min=0) + f.min_exponent - f.mantissa)
    return torch.where(code >= 0x80, -value, value)


def stochastic_bf16(x, random):
    """x float32 to one of the two BF16 around it, up with the probability of what is cut off: unbiased; BF16 values stay. random: numpy RandomState."""
    noise = torch.from_numpy(random.randint(0, 1 << 16, tuple(x.shape), dtype=np.int32)).to(x.device)
    return ((x.view(torch.int32) + noise) & -0x10000).view(torch.float32)

# ---------------------------------------------------------------------------- recipes

# A recipe is a function (history, name, x) -> Operand. x (rows, cols) float32; name: role/layer/linear, role x and w (inputs, weights) or dy (gradients).
# history: a dictionary that lives as long as one model's run: what the recipe keeps there under the name it finds again at the next call;
# history["step"] counts the optimizer steps that are done (GPT.end_step), so that calls of one number belong to one step.
#     Operand    the name, what was quantized (x, as BF16), and it quantized for a contraction along the columns (k) and for one along the rows (t)
#     Quantized  scale, descale: float32 (R, S), numpy; each is of a block of rows/R x cols/S elements: (1, 1) of the whole tensor, (rows, 1) of each row,
#                (rows, cols/32) of 32 in a row. codes uint8 and value, what they stand for, float32: (rows, cols)
Operand = namedtuple("Operand", "name x k t")
Quantized = namedtuple("Quantized", "format scale descale codes value")


def quantize(x, f, scale):
    """Quantized of BF16 values x in format f. scale: float32 (R, S), numpy; its inverse is rounded to float32."""
    descale = np.float32(1) / scale

    def spread(s):
        s = torch.from_numpy(s).to(x.device)
        return s.repeat_interleave(x.shape[0] // s.shape[0], 0).repeat_interleave(x.shape[1] // s.shape[1], 1)
    codes = fp8_encode(x * spread(scale), f)
    return Quantized(f, scale, descale, codes, fp8_decode(codes, f) * spread(descale))


def gradients_in_e5m2(name):
    """The format of a tensor: E4M3, gradients E5M2."""
    return E5M2 if name.startswith("dy/") else E4M3


def scale_from_amax(amax, largest):
    """float32 multiplier that brings amax to the format's largest value: one division. 1 if amax is 0, infinite or NaN; at most 2^126, so that 1/scale is normal."""
    if amax == 0 or not np.isfinite(amax):
        return np.float32(1)
    with np.errstate(over="ignore"):
        return min(np.float32(largest) / np.float32(amax), np.float32(2.0**126))


def recipe_current(history, name, x):
    """One scale a tensor, from its own largest magnitude, without a history. BF16 first, then the amax, the scale, the conversion."""
    f = gradients_in_e5m2(name)
    x = bf16(x)
    q = quantize(x, f, np.array([[scale_from_amax(np.float32(x.abs().max().item()), f.max)]]))
    return Operand(name, x, q, q)

# ---------------------------------------------------------------------------- precisions


# low: what is stored is rounded to BF16. recipe: None, or the function that quantizes. name: that of its files.
Precision = namedtuple("Precision", "name dtype low recipe")
PRECISIONS = {p.name: p for p in (
    Precision("float64", torch.float64, False, None),
    Precision("float32", torch.float32, False, None),
    Precision("bfloat16", torch.float32, True, None),
    Precision("float8", torch.float32, True, recipe_current))}


class RoundValue(torch.autograd.Function):
    """The value is stored as BF16; the gradient passes."""
    @staticmethod
    def forward(ctx, x):
        return bf16(x)

    @staticmethod
    def backward(ctx, dx):
        return dx


class RoundGradient(torch.autograd.Function):
    """The gradient is stored as BF16; the value passes."""
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return bf16(dx)


class LowLinear(torch.autograd.Function):
    """y (N,out) = x (N,in) W^T + b. operand(name, tensor) -> k, t: the values that a contraction along its columns, its rows reads. dy comes as BF16; dx is
    rounded where x was stored; dW is stored as BF16, db (of the unquantized dy) as float32."""
    @staticmethod
    def forward(ctx, x, w, b, name, operand):
        (x_k, x_t), (w_k, w_t) = operand("x/" + name, x), operand("w/" + name, w)
        ctx.save_for_backward(x_t, w_t)
        ctx.name, ctx.operand = name, operand
        return x_k @ w_k.t() + b

    @staticmethod
    def backward(ctx, dy):
        x_t, w_t = ctx.saved_tensors
        dy_k, dy_t = ctx.operand("dy/" + ctx.name, dy)
        return dy_k @ w_t, bf16(dy_t.t() @ x_t), dy.sum(0), None, None

# ---------------------------------------------------------------------------- parameters


Config = namedtuple("Config", "max_seq_len vocab_size num_layers num_heads channels padded_vocab_size")
Param = namedtuple("Param", "name shape decay")


def param_table(c):
    """All parameter tensors in the order of llm.c's files. Matrices are (out, in), layers lead. decay: AdamW's weight decay applies (2-D tensors)."""
    L, C = c.num_layers, c.channels
    return [
        Param("wte", (c.padded_vocab_size, C), True), Param("wpe", (c.max_seq_len, C), True),
        Param("ln1w", (L, C), False), Param("ln1b", (L, C), False), Param("qkvw", (L, 3 * C, C), True), Param("qkvb", (L, 3 * C), False),
        Param("attprojw", (L, C, C), True), Param("attprojb", (L, C), False), Param("ln2w", (L, C), False), Param("ln2b", (L, C), False),
        Param("fcw", (L, 4 * C, C), True), Param("fcb", (L, 4 * C), False), Param("fcprojw", (L, C, 4 * C), True), Param("fcprojb", (L, C), False),
        Param("lnfw", (C,), False), Param("lnfb", (C,), False)]


def random_params(c, random):
    """float32 values, all exact in BF16, at which no gradient is trivially right: attention far from uniform, biases and layernorms off 0 and 1.
    Padded rows of wte are 0."""
    params = {}
    for p in param_table(c):
        x = random.standard_normal(p.shape)
        if p.name in ("wte", "wpe") or len(p.shape) == 3:
            x *= 1 / math.sqrt(p.shape[-1])
        else:
            x = 0.2 * x + (1 if p.name in ("ln1w", "ln2w", "lnfw") else 0)
        params[p.name] = bf16(torch.from_numpy(x.astype(np.float32)))
    params["wte"][c.vocab_size:] = 0
    return params

# ---------------------------------------------------------------------------- the network


class GPT:
    """params: dict of float32 tensors, copied. log: None, or a list to which every Operand is appended. history: the recipe's."""
    def __init__(self, config, params, precision, device="cpu"):
        self.config, self.precision, self.log, self.history = config, precision, None, {"step": 0}
        values = {name: bf16(x) if precision.low else x for name, x in params.items()}
        self.params = {name: x.to(device=device, dtype=precision.dtype, copy=True).requires_grad_() for name, x in values.items()}

    def end_step(self):
        """The weights were updated; what comes belongs to the next optimizer step."""
        self.history["step"] += 1

    def operand(self, name, x):
        if self.precision.recipe is None:
            return x, x
        q = self.precision.recipe(self.history, name, x)
        if self.log is not None:
            self.log.append(q)
        return q.k.value, q.t.value

    def round_value(self, x):
        return RoundValue.apply(x) if self.precision.low else x

    def round_gradient(self, x):
        return RoundGradient.apply(x) if self.precision.low else x

    def store(self, x):
        return self.round_value(self.round_gradient(x))

    def layernorm(self, x, w, b):
        return self.store(F.layer_norm(x, (self.config.channels,), w, b, 1e-5))

    def linear(self, x, w, b, name):
        return self.store(LowLinear.apply(x, w, b, name, self.operand) if self.precision.low else x @ w.t() + b)

    def attention(self, qkv, B, T):
        """y (N,C) of qkv (N,3C): per head, position t attends to positions <= t."""
        NH, C = self.config.num_heads, self.config.channels
        q, k, v = qkv.view(B, T, 3, NH, C // NH).permute(2, 0, 3, 1, 4)  # each (B, NH, T, hs)
        scores = self.round_gradient(q @ k.transpose(-2, -1)) / math.sqrt(C // NH)
        future = torch.ones(T, T, dtype=torch.bool, device=qkv.device).triu(1)
        p = self.round_value(torch.softmax(scores.masked_fill(future, -math.inf), dim=-1))
        return self.store((p @ v).transpose(1, 2).reshape(B * T, C))

    def forward(self, x, y):
        """x, y (B,T) int64 -> logits (B,T,V), mean loss."""
        B, T = x.shape
        p = self.params
        layers = {name: value.unbind(0) for name, value in p.items() if name not in ("wte", "wpe", "lnfw", "lnfb")}
        r = self.store((F.embedding(x, p["wte"]) + p["wpe"][:T]).view(B * T, -1))
        for l in range(self.config.num_layers):
            w = {name: value[l] for name, value in layers.items()}
            qkv = self.linear(self.layernorm(r, w["ln1w"], w["ln1b"]), w["qkvw"], w["qkvb"], f"{l}/qkv")
            r = self.store(r + self.linear(self.attention(qkv, B, T), w["attprojw"], w["attprojb"], f"{l}/attproj"))
            h = self.linear(self.layernorm(r, w["ln2w"], w["ln2b"]), w["fcw"], w["fcb"], f"{l}/fc")
            g = self.store(F.gelu(h, approximate="tanh"))
            r = self.store(r + self.linear(g, w["fcprojw"], w["fcprojb"], f"{l}/fcproj"))
        logits = self.store(self.layernorm(r, p["lnfw"], p["lnfb"]) @ p["wte"][:self.config.vocab_size].t())
        return logits.view(B, T, -1), F.cross_entropy(logits, y.reshape(-1))

    def gradients(self, x, y):
        """-> logits, loss, dict of the gradients of all parameters."""
        logits, loss = self.forward(x, y)
        grads = torch.autograd.grad(loss, list(self.params.values()))
        return logits.detach(), loss.detach(), dict(zip(self.params, grads))

# ---------------------------------------------------------------------------- optimizer


Hyper = namedtuple("Hyper", "lr beta1 beta2 eps weight_decay clip")


class AdamW:
    """Loshchilov & Hutter 2019, after clipping the global gradient norm. Moments in the type of computation; BF16 weights are their own masters, rounded
    stochastically."""
    def __init__(self, gpt, hyper, seed):
        self.gpt, self.hyper, self.random, self.t = gpt, hyper, np.random.RandomState(seed), 0
        self.m = {name: torch.zeros_like(p) for name, p in gpt.params.items()}
        self.v = {name: torch.zeros_like(p) for name, p in gpt.params.items()}

    @torch.no_grad()
    def step(self, grads):
        """Updates the weights; -> gradient norm before clipping."""
        h = self.hyper
        self.t += 1
        norm = math.sqrt(sum((g.double()**2).sum().item() for g in grads.values()))
        clip = h.clip / norm if norm > h.clip else 1.0
        for spec in param_table(self.gpt.config):
            p, m, v, g = self.gpt.params[spec.name], self.m[spec.name], self.v[spec.name], clip * grads[spec.name]
            m.mul_(h.beta1).add_((1 - h.beta1) * g)
            v.mul_(h.beta2).add_((1 - h.beta2) * g * g)
            direction = (m / (1 - h.beta1**self.t)) / ((v / (1 - h.beta2**self.t)).sqrt() + h.eps)
            new = p - h.lr * (direction + (h.weight_decay if spec.decay else 0.0) * p)
            p.copy_(stochastic_bf16(new, self.random) if self.gpt.precision.low else new)
        self.gpt.end_step()
        return norm
