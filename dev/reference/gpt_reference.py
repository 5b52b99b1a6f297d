"""gpt_reference.py - GPT-2 in PyTorch, in float64 (the truth), float32, bfloat16 and float8 with every recipe: what the C program is compared with

Written from the papers and from the format documents, never from the C sources, so that one error cannot hide in both.

The network  [Radford et al. 2019; layernorm Ba et al. 2016; GELU Hendrycks & Gimpel 2016, tanh form; attention Vaswani et al. 2017]
    r = wte[token] + wpe[position];  per layer:  r += attproj(attention(qkv(ln1(r))));  r += fcproj(gelu(fc(ln2(r))))
    logits = lnf(r) wte^T;  loss = mean cross entropy over the B*T tokens
float64, float32   every operation in that type, gradients by autograd.
bfloat16           tensors that a training program keeps in memory are rounded to BF16 where they are made: weights, residual stream, layernorm outputs, qkv,
                   attention probabilities and output, h, gelu(h), each branch, logits; and so are the gradients of all of them, of the attention
                   scores, and of the linear layers' weights. Arithmetic in between, and all other parameter gradients, are float32.
float8             bfloat16, but each product of the four linear layers of a block reads two operands quantized by a recipe:
                   y = x W^T, dx = dy W, dW = dy^T x, with the sums that `multiply` tells.

A BF16 number is held as the float32 of the same value, an FP8 number as its code: all is plain float32 and float64 arithmetic, which runs anywhere (torch 1.13
knows no FP8). A new recipe is one function at "recipes" below, and one line at "precisions".
Tests: dev/check_reference.py
"""
import math
from collections import namedtuple
from fnmatch import fnmatch
from functools import partial

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


def fp8_values(f):
    """float32 values of all codes; NaN beyond the largest finite value (E5M2's infinity never comes out of fp8_encode)."""
    a = torch.arange(0x80, dtype=torch.int32)
    exponent = a >> f.mantissa
    steps = a - ((exponent - 1).clamp(min=0) << f.mantissa)  # mantissa with its hidden bit, of which numbers of exponent 0 have none
    value = steps.to(torch.float32) * power_of_two((exponent - 1).clamp(min=0) + f.min_exponent - f.mantissa)
    value[f.max_code + 1:] = math.nan
    return torch.cat([value, -value])


FP8_VALUES = {f: fp8_values(f) for f in (E4M3, E5M2)}


def fp8_decode(code, f):
    return FP8_VALUES[f].to(code.device)[code.long()]


def stochastic_bf16(x, random):
    """x float32 to one of the two BF16 around it, up with the probability of what is cut off: unbiased; BF16 values stay. random: numpy RandomState."""
    noise = torch.from_numpy(random.randint(0, 1 << 16, tuple(x.shape), dtype=np.int32)).to(x.device)
    return ((x.view(torch.int32) + noise) & -0x10000).view(torch.float32)

# ---------------------------------------------------------------------------- recipes

# A recipe is a function (history, name, x) -> Operand. x (rows, cols) float32; name: role/layer/linear, role x and w (inputs, weights) or dy (gradients).
# Products contract both operands along their columns, so a tensor has two orders: k is x itself, t its transpose, each quantized on its own.
#     Operand    the name, what was quantized (x, as BF16), and both orders
#     Quantized  one order (outer, inner) of a tensor. codes: uint8. scale, descale: float32, numpy, one for each block of `block` elements, in rows of blocks;
#                blocks at the edges may be partial. A scale multiplies before the conversion, its descale what comes of a product. e: None, or where the
#                scales are powers of two in a byte, these
# history: a dictionary that lives as long as one model's run: what the recipe keeps there under the name it finds again at the next call. Its own entries:
#     step        optimizer steps that have ended: calls of one number belong to one step, which may have several micro-steps
#     dropped     those of them that changed nothing (a step with NaN is skipped)
#     evaluating  True in an evaluation, which must leave everything as it was
Operand = namedtuple("Operand", "name x k t")
Quantized = namedtuple("Quantized", "format block codes scale descale e", defaults=(None,))

SCALE_LIMIT = np.float32(2.0**126)  # 1 / scale is a normal number
GRADIENTS_E5M2 = {"x": E4M3, "w": E4M3, "dy": E5M2}
ALL_E4M3 = {"x": E4M3, "w": E4M3, "dy": E4M3}


def new_history():
    return {"step": 0, "dropped": set(), "evaluating": False}


def role_of(name):
    return name.split("/")[0]


def spread(s, block, shape):
    """The number of each element, of the numbers s (numpy) of its blocks: a tensor of this shape."""
    return torch.from_numpy(s[np.ix_(*(np.arange(n) // b for n, b in zip(shape, block)))])


def block_amax(x, block):
    """The largest magnitude of each block, float32, numpy; NaN where there is one."""
    a = x.abs().cpu().numpy()
    for axis in range(2):
        a = np.maximum.reduceat(a, np.arange(0, a.shape[axis], block[axis]), axis)
    return a


def both_orders(name, x, f, block, rule):
    """Operand of x. block (outer, inner) elements of either order have a scale, 0: all there are. rule(largest magnitudes, format) -> scales, descales (, e)."""
    x = bf16(x)

    def order(x):
        size = tuple(b or n for b, n in zip(block, x.shape))
        scales = rule(block_amax(x, size), f)
        return Quantized(f, size, fp8_encode(x * spread(scales[0], size, x.shape).to(x.device), f), *scales)
    return Operand(name, x, order(x), order(x.t().contiguous()))


def scale_from_amax(amax, f):
    """float32 multiplier that brings amax to the format's largest value: one division. 1 if amax is 0, infinite or NaN; at most SCALE_LIMIT."""
    amax = np.asarray(amax, np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = np.minimum(np.float32(f.max) / amax, SCALE_LIMIT)
    return np.where((amax == 0) | ~np.isfinite(amax), np.float32(1), scale)


def scale_from_history(amax, f, margin, old):
    """The same of earlier amaxes, with 2^margin to spare; if they tell nothing, the old scale stays."""
    if amax == 0 or not np.isfinite(amax):
        return old
    with np.errstate(over="ignore"):
        return min(np.float32(f.max) / amax / np.float32(2**margin), SCALE_LIMIT)


def with_inverse(scale):
    return scale, np.float32(1) / scale


def float_rule(amax, f):
    return with_inverse(scale_from_amax(amax, f))


def power_rule(amax, f):
    """Rounded down to a power of two, so that nothing saturates that did not before: the mantissa's bits are cleared."""
    return with_inverse((scale_from_amax(amax, f).view(np.int32) & 0x7f800000).view(np.float32))


def mx_exponent(amax, f):
    """Byte e that stands for 2^(e - 127), the smallest by which amax divided is in the format's range; 254 of infinity, 255 of NaN.   [OCP Microscaling 1.0, E8M0]"""
    with np.errstate(invalid="ignore"):
        mantissa, exponent = np.frexp(amax.astype(np.float64) / f.max)  # a mantissa from 0.5: exact at the powers of two, where it matters
        e = np.where(amax == 0, 0, np.clip(exponent + 127 - (mantissa == 0.5), 0, 254))
    return np.where(np.isnan(amax), 255, np.where(np.isinf(amax), 254, e))


def mx_rule(amax, f):
    """2^-127 and less are denormal float32, and exact."""
    e = mx_exponent(amax, f)
    return np.ldexp(np.float32(1), 127 - e), np.where(e == 255, np.float32(np.nan), np.ldexp(np.float32(1), np.minimum(e, 254) - 127)), e.astype(np.uint8)


def recipe_current(history, name, x, formats=GRADIENTS_E5M2):
    """One scale a tensor, from its own largest magnitude, without a history. BF16 first, then the amax, the scale, the conversion."""
    return both_orders(name, x, formats[role_of(name)], (0, 0), float_rule)


def recipe_delayed(history, name, x, formats=GRADIENTS_E5M2, length=16, most_recent=False, margin=0):
    """One scale a tensor, from the largest magnitudes of the last `length` optimizer steps that used it: from the largest, or the most recent. It stays what it is
    during a step. Before the first step has ended there is no history: as recipe_current."""
    f, amax = formats[role_of(name)], block_amax(bf16(x), x.shape)[0, 0]
    s = history.setdefault(name, {"past": [], "amax": None, "scale": np.float32(1), "step": history["step"]})
    if s["step"] != history["step"]:  # the first use since that step ended
        if s["amax"] is not None and s["step"] not in history["dropped"]:
            s["past"] = ([s["amax"]] + s["past"])[:length]
            s["scale"] = scale_from_history(s["past"][0] if most_recent else np.max(s["past"]), f, margin, s["scale"])
        s["amax"], s["step"] = None, history["step"]
    scale = s["scale"] if s["past"] else scale_from_amax(amax, f)[()]
    if not history["evaluating"]:
        s["amax"], s["scale"] = amax if s["amax"] is None else np.maximum(s["amax"], amax), scale  # of NaN and a number: NaN
    return both_orders(name, x, f, (0, 0), lambda amax, f: with_inverse(np.full((1, 1), scale)))


def recipe_row(history, name, x, formats=ALL_E4M3):
    """One scale for each row of either order."""
    return both_orders(name, x, formats[role_of(name)], (1, 0), float_rule)


def recipe_block(history, name, x, formats=ALL_E4M3, powers_of_two=False):
    """One scale for each 128 elements of a row of either order; of weights for each 128 x 128."""
    return both_orders(name, x, formats[role_of(name)], (128, 128) if role_of(name) == "w" else (1, 128), power_rule if powers_of_two else float_rule)


def recipe_mx(history, name, x, formats=ALL_E4M3):
    """A power of two, the byte of mx_exponent, for each 32 elements of a row of either order."""
    return both_orders(name, x, formats[role_of(name)], (1, 32), mx_rule)


def multiply(a, b):
    """float32 (m,n): a (m,k) times the transpose of b (n,k), both plain or both quantized. Quantized: the sum over each block of the contraction, rounded to
    float32, times the product of its two descales, which is rounded as well; these are added in float32 in order. Powers of two (mx) scale the terms instead,
    exactly. A sum's terms are added in float64: it is what every order of float32 additions comes near."""
    if isinstance(a, torch.Tensor):
        return a @ b.t()
    (x, x_scale), (y, y_scale) = ((fp8_decode(q.codes, q.format).double(), torch.from_numpy(q.descale).to(q.codes.device)) for q in (a, b))
    if a.e is not None:
        x, y = (v * spread(q.descale, q.block, v.shape).to(v.device) for v, q in ((x, a), (y, b)))
        return (x @ y.t()).float()
    parts = []
    for i, (u, v) in enumerate(zip(x.split(a.block[1], 1), y.split(b.block[1], 1))):
        row, col = (s[:, i].repeat_interleave(q.block[0])[:len(q.codes)] for s, q in ((x_scale, a), (y_scale, b)))
        parts.append((u @ v.t()).float() * (row[:, None] * col[None, :]))
    return sum(parts[1:], parts[0])

# ---------------------------------------------------------------------------- precisions


# name: that of its files. low: what is stored is rounded to BF16. recipe: None, or the function that quantizes. bf16: linear layers that it leaves in BF16, as
# patterns of their names l0.qkv, l0.attproj ... (l0.*: layer 0; *.fc: of all layers). bf16_wgrad: dW is a product of BF16 tensors. head: the logits' product
# is quantized as well (l<number of layers>.head).
Precision = namedtuple("Precision", "name dtype low recipe bf16 bf16_wgrad head", defaults=((), False, False))


def table(*precisions):
    return {p.name: p for p in precisions}


PRECISIONS = table(
    Precision("float64", torch.float64, False, None),
    Precision("float32", torch.float32, False, None),
    Precision("bfloat16", torch.float32, True, None),
    Precision("float8", torch.float32, True, recipe_current))

# The other recipes, and what a run may vary
RECIPES = {
    "delayed": recipe_delayed,
    "row": recipe_row,
    "block": recipe_block,
    "block_pow2": partial(recipe_block, powers_of_two=True),
    "mx": recipe_mx,
    "mx_e5m2_dy": partial(recipe_mx, formats=GRADIENTS_E5M2),
    "current_e4m3": partial(recipe_current, formats=ALL_E4M3),
    "current_e5m2_x": partial(recipe_current, formats={"x": E5M2, "w": E4M3, "dy": E4M3})}
VARIANTS = table(
    *(Precision(name, torch.float32, True, RECIPES[name]) for name in ("delayed", "row", "block", "block_pow2", "mx")),
    Precision("row_bf16_wgrad", torch.float32, True, recipe_row, bf16_wgrad=True),
    Precision("mixed", torch.float32, True, RECIPES["mx_e5m2_dy"], bf16=("l0.*", "*.attproj")),
    Precision("head", torch.float32, True, recipe_current, head=True))


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


class Product(torch.autograd.Function):
    """y (N,out) = x (N,in) w (out,in)^T of a linear layer. operand(name, tensor) -> Operand, whose orders are plain tensors where nothing is quantized. dy comes as
    BF16; dx and dw are rounded where x and w were stored."""
    @staticmethod
    def forward(ctx, x, w, name, operand):
        x, w = operand("x/" + name, x), operand("w/" + name, w)
        ctx.saved = x.t, w.t, name, operand
        return multiply(x.k, w.k)

    @staticmethod
    def backward(ctx, dy):
        x_t, w_t, name, operand = ctx.saved
        dy = operand("dy/" + name, dy)
        return multiply(dy.k, w_t), multiply(dy.t, x_t), None, None

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
    """params: dict of float32 tensors, copied. log: None, or a list to which every Operand is appended that a recipe made. history: the recipe's."""
    def __init__(self, config, params, precision, device="cpu"):
        self.config, self.precision, self.log, self.history = config, precision, None, new_history()
        values = {name: bf16(x) if precision.low else x for name, x in params.items()}
        self.params = {name: x.to(device=device, dtype=precision.dtype, copy=True).requires_grad_() for name, x in values.items()}
        linears = [f"{l}/{linear}" for l in range(config.num_layers) for linear in ("qkv", "attproj", "fc", "fcproj")]
        for pattern in precision.bf16:
            if not any(fnmatch(self.dotted(name), pattern) for name in linears):
                raise ValueError(f"precision {precision.name}: no linear layer is named {pattern}")

    @staticmethod
    def dotted(name):
        return "l" + name.replace("/", ".")

    def end_step(self, dropped=False):
        """What comes belongs to the next optimizer step. dropped: this one did not count (the weights were not updated)."""
        if dropped:
            self.history["dropped"].add(self.history["step"])
        self.history["step"] += 1

    def operand(self, name, x):
        role, linear = name.split("/", 1)
        p = self.precision
        if p.recipe is None or any(fnmatch(self.dotted(linear), pattern) for pattern in p.bf16):
            return Operand(name, x, x, x.t())
        q = p.recipe(self.history, name, x)
        if self.log is not None:
            self.log.append(q)
        return q._replace(t=x.t()) if p.bf16_wgrad and role != "w" else q

    def round_value(self, x):
        return RoundValue.apply(x) if self.precision.low else x

    def round_gradient(self, x):
        return RoundGradient.apply(x) if self.precision.low else x

    def store(self, x):
        return self.round_value(self.round_gradient(x))

    def layernorm(self, x, w, b):
        return self.store(F.layer_norm(x, (self.config.channels,), w, b, 1e-5))

    def linear(self, x, w, b, name):
        return self.store((Product.apply(x, self.round_gradient(w), name, self.operand) if self.precision.low else x @ w.t()) + b)

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
        r, V = self.layernorm(r, p["lnfw"], p["lnfb"]), self.config.vocab_size
        # quantized with the padded rows of wte, and gradients 0 there: they share blocks with others
        logits = self.store(Product.apply(r, p["wte"], f"{self.config.num_layers}/head", self.operand)[:, :V] if self.precision.head else r @ p["wte"][:V].t())
        return logits.view(B, T, -1), F.cross_entropy(logits, y.reshape(-1))

    def gradients(self, x, y):
        """-> logits, loss, dict of the gradients of all parameters."""
        logits, loss = self.forward(x, y)
        grads = torch.autograd.grad(loss, list(self.params.values()))
        return logits.detach(), loss.detach(), dict(zip(self.params, grads))

    @torch.no_grad()
    def evaluate(self, x, y):
        """-> mean loss. Quantizes with training's scales, and leaves no trace."""
        self.history["evaluating"] = True
        loss = self.forward(x, y)[1]
        self.history["evaluating"] = False
        return loss

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
