"""What of torch's headers the core has to know in full, so that a newer torch shows here what it adds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

CORE = Path(__file__).parents[2] / "csrc"
INCLUDE = Path(torch.__path__[0], "include")

NO_SETTINGS_OF_REPLAYS = {
    "setSDPUseFlash setSDPUseMemEfficient setSDPUseMath setSDPUseCuDNN setSDPUseOverrideable setSDPPriorityOrder "
    "setAllowFP16BF16ReductionMathSDP": "they choose among the ops of attention, before one of these is recorded",
    "setAllowTF32CuBLAS setAllowTF32CuDNN setAllowTF32OneDNN setFloat32MatmulPrecision setFloat32Precision": (
        "other names for the precisions, which are in it"
    ),
    "setLinalgPreferredBackend setQEngine": "for ops that are not replayed",
    "setBenchmarkLimitCuDNN": "for the first op of a shape, which no replay is: cuDNN remembers its choice",
    "setImmediateMiopen setROCmFAPreferredBackend": "of AMD's GPUs",
    "setDefaultMobileCPUAllocator unsetDefaultMobileCPUAllocator setReleaseWeightsWhenPrepacking": "of phones",
    "setDeterministicFillUninitializedMemory": "replays write all that anybody reads",
    "setCheckSparseTensorInvariants setDisplayVmapFallbackWarnings setOverrideStaleCaptureStream "
    "setWarnOnAccumulateGradStreamMismatch": "they check and warn",
}


def without_comments(path: Path) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def body_of(name: str, text: str) -> str:
    """Between the braces of a class."""
    head = re.search(rf"\n(?:class|struct) (?:\w+ )?{name}\b[^;{{]*\{{", text)
    assert head is not None, f"the header has no class {name}"
    depth, end = 1, head.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[head.end() : end]


@pytest.mark.parametrize(
    ("header", "name", "as_they_are"),
    [
        ("cuda/CUDACachingAllocator.h", "CUDAAllocator", set()),
        # The first asks the driver, not the allocator. The second compares two pointers of what it is given.
        ("core/CachingDeviceAllocator.h", "DeviceAllocator", {"getMemoryInfo"}),
        ("core/Allocator.h", "Allocator", {"is_simple_data_ptr"}),
    ],
)
def test_every_virtual_method_is_forwarded(header: str, name: str, as_they_are: set[str]) -> None:
    """One that a newer torch adds has a default in the base class, so that the compiler does not miss it."""
    asked = set(
        re.findall(r"virtual\s[^;{(~]*?(\w+)\(", body_of(name, without_comments(INCLUDE / "c10" / header)))
    )
    forwarded = set(
        re.findall(
            r"(\w+)\([^;{]*?\)\s*(?:const\s*)?override",
            without_comments(CORE / "device" / "cuda" / "torch_allocator.cpp"),
        )
    )
    assert len(asked) >= 3 and asked - forwarded == as_they_are


def test_every_setting_of_torch_that_may_change_a_replay_is_kept_with_it() -> None:
    """Those that replays ask for and put back; see csrc/surroundings.h."""
    text = body_of("Context", without_comments(INCLUDE / "ATen" / "Context.h"))
    there = set(re.findall(r"\bvoid (\w*[sS]et[A-Z]\w*)\(", text))
    ours = without_comments(CORE / "surroundings.cpp")
    kept = {name for name in there if re.search(rf"\b{name}\b", ours)}
    known = {name for names in NO_SETTINGS_OF_REPLAYS for name in names.split()}
    assert len(kept) >= 12 and there - kept - known == set()
    # Where the header lacks a getter, the core compiles without its setting.
    optional = re.findall(r"SETTING_OF_SOME_TORCH\(\w+,\s*(\w+),\s*(\w+)\)", ours)
    assert len(optional) >= 5
    for getter, setter in optional:
        assert (setter in there) == bool(re.search(rf"\b{getter}\(\) const", text)), getter
