"""Triton's interpreter as a GPU would be: memory that nobody wrote holds rubbish, casts round, exp is inexact, and a
product and a sum are one multiply-add.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import torch


def quicken() -> None:
    """The same numbers in less time, for the rest of the process.

    For every launch, and every call of one function of a kernel by another, the interpreter looks through all of
    Triton's language for what it must replace there, and takes it out after the launch. For every operation it makes
    the type of its result, and a table of all types, anew. And the bits of a dropout, which follow from the arguments
    alone, take half of a training step: backward passes and second runs ask for those of the forward pass again.
    """
    from triton.language import core, semantic
    from triton.runtime import interpreter

    patch, dtype_of, with_element = interpreter._patch_lang, interpreter._get_np_dtype, core.block_type.with_element_ty
    call, dtypes, blocks, bits = interpreter.InterpretedFunction.__call__, {}, {}, {}

    @functools.cache
    def patched(function):
        patch(function)
        return SimpleNamespace(restore=lambda: None)

    def known_dtype(kind):
        if kind.name not in dtypes:
            dtypes[kind.name] = dtype_of(kind)
        return dtypes[kind.name]

    def known_block(self, scalar):
        key = self.name, scalar.name
        if key not in blocks:
            blocks[key] = with_element(self, scalar)
        return blocks[key]

    def value(argument):
        """What an argument is, of tensors all numbers too."""
        if not isinstance(argument, core.tensor):
            return str(argument)
        return argument.type.name, argument.handle.data.shape, argument.handle.data.tobytes()

    def called(self, *arguments, **options):
        if self.fn.__name__ != "keep_bits":
            return call(self, *arguments, **options)
        key = self.fn, *map(value, arguments), *((name, value(option)) for name, option in options.items())
        if key not in bits:
            bits[key] = call(self, *arguments, **options)
        return bits[key]

    interpreter._patch_lang, interpreter._get_np_dtype = patched, known_dtype
    core.block_type.with_element_ty, interpreter.InterpretedFunction.__call__ = known_block, called
    if hasattr(semantic, "TritonSemantic"):  # Triton before 3.4 has functions in its place
        _quicken_operations(core, semantic.TritonSemantic, interpreter.InterpreterBuilder)


def _quicken_operations(core, semantic, interpreting: type) -> None:
    """For every operation the interpreter makes what follows from a type anew, broadcasts what has one shape already,
    casts what has the type already, asks what two operands of one type become and how one integer becomes another,
    makes a tensor of the same number again, and looks for overflows, of which it says nothing."""
    tensor, broadcast, cast = core.tensor.__init__, semantic.broadcast_impl_value, semantic.cast
    overflow, to_ir = semantic.binary_op_sanitize_overflow_impl, core.block_type.to_ir
    check, check_bits = semantic.binary_op_type_checking_impl, semantic.bitwise_op_type_checking_impl
    unwrap, numbers, shapes = core._unwrap_if_constexpr, {}, {}

    def unwrap_once(given):
        """By the type, where it says all."""
        if type(given) is core.tensor or type(given) is int:
            return given
        return given.value if type(given) is core.constexpr else unwrap(given)

    def made(self, handle, kind):
        """A tensor, of which all but its numbers is that of the type."""
        if not hasattr(kind, "made"):
            tensor(self, handle, kind)
            kind.made = {name: value for name, value in vars(self).items() if name != "handle"}
        vars(self).update(kind.made, handle=handle)

    def broadcast_once(self, a, b):
        if not isinstance(self.builder, interpreting):  # one that compiles, beside the interpreter
            return broadcast(self, a, b)
        key = a.type.name, b.type.name
        if key not in shapes:
            found = broadcast(self, a, b)
            if len({len(x.type.shape) for x in (a, b) if x.type.is_block()}) > 1:
                return found
            shapes[key] = [None if to is x else to.type for x, to in zip((a, b), found, strict=True)]
        to_a, to_b = shapes[key]
        return (
            a if to_a is None else spread(self.builder, a, to_a),
            b if to_b is None else spread(self.builder, b, to_b),
        )

    def spread(builder, x, to):
        if x.type.is_block():
            return core.tensor(builder.create_broadcast(x.handle, to.shape), to)
        return core.tensor(builder.create_splat(to.to_ir(builder), x.handle), to)

    def check_once(self, a, b, *options, **named):
        """Two tensors of one type stay what they are, but for quotients in 16 bits and pointers. A number becomes what
        it became beside the last tensor of that type."""
        known = type(a) is core.tensor, type(b) is core.tensor
        if named or not any(known) or not isinstance(self.builder, interpreting):
            return check(self, a, b, *options, **named)
        if all(known):
            kind, other = a.type, b.type
            of_one_type = kind.scalar is other.scalar or kind.scalar.name == other.scalar.name
            if not of_one_type or len(options) > 3 or kind.scalar.is_ptr():
                return check(self, a, b, *options)
            return (a, b) if kind is other or kind.name == other.name else broadcast_once(self, a, b)
        kept, number = (a, b) if known[0] else (b, a)
        key = kept.type.name, known, type(number), number, options
        if key not in numbers:
            found = check(self, a, b, *options)
            if found[not known[0]] is not kept:
                return found
            numbers[key] = found[known[0]]
        made = numbers[key]
        made = core.tensor(type(made.handle)(made.handle.data, made.handle.dtype), made.type)
        return (a, made) if known[0] else (made, b)

    def check_bits_once(self, a, b):
        a, b = check_once(self, a, b)
        of_one_type = a.type.scalar.name == b.type.scalar.name and a.type.scalar.is_int()
        return (a, b) if of_one_type else check_bits(self, a, b)

    def cast_once(self, given, kind, *options, **named):
        source, scalar = given.type.scalar, kind.scalar
        if source is scalar:
            return given
        of_integers = source.is_int() and scalar.is_int() and not scalar.is_bool() and source.name != scalar.name
        if not of_integers or any(options) or named or not isinstance(self.builder, interpreting):
            return cast(self, given, kind, *options, **named)
        to = given.type.with_element_ty(scalar) if given.type.is_block() else scalar
        sign_extend = source.is_int_signed() and not source.is_bool()
        return core.tensor(self.builder.create_int_cast(given.handle, to.to_ir(self.builder), sign_extend), to)

    def look_for_overflow(self, a, b, operation):
        if self.builder.options.debug:  # else Triton takes no notice of what it finds
            overflow(self, a, b, operation)

    def kept_ir(self, builder):
        if not isinstance(builder, interpreting):
            return to_ir(self, builder)
        if not hasattr(self, "ir"):
            self.ir = to_ir(self, builder)
        return self.ir

    core.tensor.__init__, semantic.broadcast_impl_value, semantic.cast = made, broadcast_once, cast_once
    semantic.binary_op_sanitize_overflow_impl, core.block_type.to_ir = look_for_overflow, kept_ir
    semantic.binary_op_type_checking_impl, semantic.bitwise_op_type_checking_impl = check_once, check_bits_once
    core._unwrap_if_constexpr = unwrap_once


def poison(monkeypatch) -> None:
    """A masked load without ``other`` gives whatever is there on a GPU; the interpreter's zeros would hide it."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

    load = InterpreterBuilder.create_masked_load

    def poisoned(self, ptrs, mask, other, *options):
        if other is None:
            kind = _get_np_dtype(ptrs.get_element_ty())
            value = np.nan if np.issubdtype(kind, np.floating) else np.iinfo(kind).max
            other = TensorHandle(np.full_like(ptrs.data, value, dtype=kind), ptrs.get_element_ty())
        return load(self, ptrs, mask, other, *options)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", poisoned)


def round_casts(monkeypatch) -> None:
    """The interpreter's own casts from float32 to fewer bits cut off, or lose what a rounding carries into the
    exponent; a GPU's round to nearest, ties to even, as torch's."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    narrow = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

    def rounding(data, source, target, mode):
        kind = narrow.get(str(target))
        if str(source) != "fp32" or kind is None:
            return convert(data, source, target, mode)
        values = torch.from_numpy(np.ascontiguousarray(data).view(np.float32).copy())
        bits = values.to(kind).view(torch.int16 if kind is torch.bfloat16 else torch.uint8).numpy()
        return bits.view(f"uint{8 * bits.itemsize}").reshape(data.shape)

    monkeypatch.setattr(interpreter, "_convert_float", rounding)


def multiply_bf16(monkeypatch) -> None:
    """The interpreter multiplies the bits of bfloat16 as integers; a GPU its numbers, which float32 holds."""
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot = InterpreterBuilder.create_dot

    def widened(handle):
        if handle.dtype.scalar is not language.bfloat16:
            return handle
        bits = torch.from_numpy(np.ascontiguousarray(handle.data).view(np.int16))
        return TensorHandle(bits.view(torch.bfloat16).float().numpy(), language.float32)

    monkeypatch.setattr(
        InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    )


def approximate(monkeypatch) -> None:
    """The interpreter's exponentials and quotients of float32 are correctly rounded; a GPU's own err by up to 2 units
    in the last place (PTX manual: ex2.approx, which is exact at 0, and div.full), and exp by what rounds its argument
    to base 2 besides. The error function errs by 2 units, logarithms by one (CUDA's guide).
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def off(values, units=2):
        """By up to so many units in the last place of each number, a share that its bits decide."""
        if values.dtype != np.float32:
            return values
        bits = np.ascontiguousarray(values).view(np.uint32) * np.uint32(2654435761)
        share = (bits >> 16).astype(np.float64) / 32768 - 1
        return np.where(values == 0, values, (values + units * np.spacing(values) * share).astype(np.float32))

    def power(x):
        return np.where(x == 0, x + 1, off(np.exp2(x)))

    def exp2(self, x):
        return TensorHandle(power(x.data), x.dtype.scalar)

    def exp(self, x):
        return TensorHandle(power(x.data * np.float32(1.4426950408889634)), x.dtype.scalar)

    divide = InterpreterBuilder.create_fdiv

    def quotient(self, a, b):
        out = divide(self, a, b)
        return TensorHandle(off(out.data), out.dtype.scalar)

    def inexact(create, units):
        def computed(self, x):
            out = create(self, x)
            return TensorHandle(off(out.data, units), out.dtype.scalar)

        return computed

    for name, units in {"create_erf": 2, "create_log": 1, "create_log2": 1}.items():
        monkeypatch.setattr(InterpreterBuilder, name, inexact(getattr(InterpreterBuilder, name), units))
    for name, function in {"create_exp": exp, "create_exp2": exp2, "create_fdiv": quotient}.items():
        monkeypatch.setattr(InterpreterBuilder, name, function)


def contract(monkeypatch) -> None:
    """The interpreter rounds every product; a GPU's compiler makes one multiply-add of a product in float32 and a sum
    or difference, where a launch does not ask it to leave that (Triton's option enable_fp_fusion). Products of float32
    matrices are summed term after term, and where such a product is added to something, from that on.
    """
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

    matrices = InterpreterBuilder.create_dot
    multiply, add, subtract = (getattr(InterpreterBuilder, f"create_{name}") for name in ("fmul", "fadd", "fsub"))
    started, fused = GridExecutor.__call__, [False]

    def start(self, *arguments, **options):
        fused[0] = options.get("enable_fp_fusion", True)
        return started(self, *arguments, **options)

    def product(self, a, b):
        out = multiply(self, a, b)
        if out.data.dtype == np.float32:
            out.factors = (a.data, b.data)
        return out

    def terms(a, b, total):
        for i in range(a.shape[1]):
            total = (total + a[:, i : i + 1].astype(np.float64) * b[i : i + 1].astype(np.float64)).astype(np.float32)
        return total

    def dot(self, a, b, d, *more):
        if any(x.data.dtype != np.float32 or x.data.ndim != 2 for x in (a, b, d)):
            return matrices(self, a, b, d, *more)
        out = TensorHandle(terms(a.data, b.data, d.data), d.dtype.scalar)
        if not d.data.any():
            out.matrices = (a.data, b.data)
        return out

    def fusing(plain, sign):
        def computed(self, a, b):
            for one, other in ((a, b), (b, a)):
                if sign == 1 and hasattr(one, "matrices") and one.data.shape == other.data.shape:
                    return TensorHandle(terms(*one.matrices, other.data), other.dtype.scalar)
            out = plain(self, a, b)
            for one, other, before, after in ((a, b, 1, sign), (b, a, sign, 1)):
                if fused[0] and hasattr(one, "factors"):
                    x, y = (factor.astype(np.float64) for factor in one.factors)
                    with np.errstate(all="ignore"):
                        out.data = (before * x * y + after * other.data.astype(np.float64)).astype(np.float32)
                    break
            return out

        return computed

    monkeypatch.setattr(GridExecutor, "__call__", start)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(InterpreterBuilder, "create_fmul", product)
    monkeypatch.setattr(InterpreterBuilder, "create_fadd", fusing(add, 1))
    monkeypatch.setattr(InterpreterBuilder, "create_fsub", fusing(subtract, -1))
