"""Compile the kernel of convolutional layers for a GPU (compute capability 9.0), without one.

Triton decides at import whether it compiles or interprets, so this needs a process of its own.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from eqprop.engines.convolutional.fused import BLOCK, _kernel

USES = {  # flags that are set
    "pool": ("BIAS", "POOLS", "DRIVES", "SPREADS"),
    "turn": ("BIAS", "BACK", "NUDGE", "POOLS", "MOVES", "COPIES", "SPREADS"),
    "move": ("BACK", "POOLS", "MOVES"),
    "spread": ("SPREADS",),
    "turn from an origin": (
        *("BIAS", "BACK", "NUDGE", "POOLS", "MOVES", "COPIES", "SPREADS"),
        *("FROM", "BACK_FROM", "POST_FROM", "ROUNDS", "BOUNDED"),
    ),
}
FLAGS = {flag for flags in USES.values() for flag in flags}
FULL = ("bias", "nudge", "drive", "post", "post_0")
LESS = ("convolved", "back", "operand", "spread", "convolved_0", "back_0")


def size_of_code(flags: tuple[str, ...], real: str, less: str, size: int, sigma: int) -> int:
    """Compile for parameters of one type and convolutions of another; return the bytes of code."""
    types = dict.fromkeys(FULL, f"*{real}") | dict.fromkeys(LESS, f"*{less}")
    types |= dict.fromkeys(("winners", "winners_0"), "*i16")
    constants = {"SIZE": size, "SIGMA": sigma, "BLOCK": BLOCK, "UNIT": 0.5, "BACK_UNIT": 0.5}
    constants |= {"RELAXATION": 1.5 if "BOUNDED" in flags else 1.0, "LOW": 0.0, "HIGH": 1.0}
    constants |= {flag: flag in flags for flag in FLAGS}
    constants["SPREADS"] &= size > 1
    numbers = set(_kernel.arg_names) - set(types) - set(constants)
    types |= dict.fromkeys(numbers, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in _kernel.arg_names}
    target = GPUTarget("cuda", 90, 32)
    return len(triton.compile(ASTSource(_kernel, signature, constants), target=target).asm["cubin"])


KINDS = (  # type of parameters, of what convolutions multiply, size of windows, number of σ
    ("fp32", "fp16", 2, 2),
    ("fp32", "bf16", 3, 3),
    ("fp64", "fp64", 2, 0),
    ("fp32", "fp32", 1, 1),
)

if __name__ == "__main__":
    for use, flags in USES.items():
        for real, less, size, sigma in KINDS:
            window = 1 if use == "move" else size
            print(use, real, less, size_of_code(flags, real, less, window, sigma))
