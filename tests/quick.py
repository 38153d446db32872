"""Machine code that is soon made, for tests of what a program computes and not of how fast."""

import functools
from collections.abc import Mapping
from typing import Any

import jax

try:
    # JAX has no public place for compiler options of every program of a process. Where this one moves, tests take longer.
    from jax._src import compiler
except ImportError:
    compiler = None

# XLA's older generator takes a quarter of the newer one's time, and programs as small as these are not worth many parts.
_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_plain = getattr(compiler, "get_compile_options", None)


@functools.cache
def _is_known(name: str, value: Any) -> bool:
    now = getattr(compiler, "get_compile_options", None)
    try:
        # What asks is compiled, too, as users' programs are.
        if compiler is not None:
            compiler.get_compile_options = _plain
        jax.jit(lambda x: x).lower(1.0).compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        return False
    finally:
        if compiler is not None:
            compiler.get_compile_options = now
    return True


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those compiler options that this version of XLA has."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


def _quick(*arguments, **named):
    # Asked for by the first program, not before: a run of several processes begins before there is a device.
    options = _plain(*arguments, **named)
    options.env_option_overrides = [*known(_OPTIONS).items(), *options.env_option_overrides]
    return options


def compile_quickly(quick: bool) -> None:
    """Programs that are compiled from now on get plain machine code, or what users get."""
    jax.config.update("jax_disable_most_optimizations", quick)
    if _plain is not None:
        compiler.get_compile_options = _quick if quick else _plain
