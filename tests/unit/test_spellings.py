"""Every public parameter that takes a size, a fraction or a link takes the same spellings: in Python, in the magics and
on the command line. One that is new and stands in no table here fails a test."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np
import pytest
import torch
from synthetic import gpt_step

import chameleon_lab as cl
from chameleon_lab import planner, policy, recovery, testing, trace
from chameleon_lab.cli import chameleon
from chameleon_lab.integrations.keeper import SessionKeeper
from chameleon_lab.lab.magics import _session_options
from chameleon_lab.planner import Draft, floor, lower_bound, plan, simulate, suggest, sweep
from chameleon_lab.policy import Edit, Link
from chameleon_lab.recovery import Costs, what_if

STEP = gpt_step(layers=2)
LINK = Link(1e9, 1e9)
SIZE = STEP.live_peak_bytes * 3 // 4 // 1024 * 1024
PLAN = plan(STEP, SIZE, LINK)


def step_builder() -> Callable[[], None]:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()

    return step


def roofline(**given: Any) -> cl.Roofline:
    needed = {"memory_bytes": 1 << 30, "bandwidth_bytes_per_s": 1e9}
    return cl.Roofline("mine", **needed | given, flops_per_s={torch.float32: 1e12})


def evict_always(capacity: Any) -> int | None:
    with testing.evict_always(capacity=capacity) as session:
        return session.capacity_bytes


def rule(**size: Any) -> Any:
    return PLAN.draft().keep(module="h.*", **size).edits


TAKES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Session.capacity": ("capacity", lambda v: cl.Session(v, device="cpu").capacity_bytes),
    "Session.link": ("link", lambda v: cl.Session(device="cpu", link=v).link),
    "Session.host_capacity": (
        "capacity",
        lambda v: cl.Session(device="cpu", host_capacity=v).host_capacity_bytes,
    ),
    "Session.margin": ("fraction", lambda v: cl.Session(device="cpu", margin=v).margin),
    "Session.link_margin": ("fraction", lambda v: cl.Session(device="cpu", link_margin=v).link_margin),
    "Session.min_swap": ("size or 0", lambda v: cl.Session(device="cpu", min_swap=v).min_swap_bytes),
    "SessionKeeper.capacity": ("capacity", lambda v: SessionKeeper(v, device="cpu").session.capacity_bytes),
    "evict_always.capacity": ("capacity", evict_always),
    "trace_meta.capacity": (
        "capacity",
        lambda v: cl.trace_meta(step_builder, device="cpu", capacity=v).meta["capacity_bytes"],
    ),
    "Roofline.memory_bytes": ("size", lambda v: roofline(memory_bytes=v)),
    "Roofline.bandwidth_bytes_per_s": ("bandwidth", lambda v: roofline(bandwidth_bytes_per_s=v)),
    "Roofline.link_out_bytes_per_s": ("bandwidth", lambda v: roofline(link_out_bytes_per_s=v)),
    "Roofline.link_in_bytes_per_s": ("bandwidth", lambda v: roofline(link_in_bytes_per_s=v)),
    "Roofline.flops_efficiency": ("fraction", lambda v: roofline(flops_efficiency=v)),
    "Roofline.bandwidth_efficiency": ("fraction", lambda v: roofline(bandwidth_efficiency=v)),
    "Link.out_bytes_per_s": ("bandwidth", lambda v: Link(v, 1e9)),
    "Link.reduced.share": ("fraction", lambda v: Link(1e9, None).reduced(v)),
    "Link.in_bytes_per_s": ("bandwidth", lambda v: Link(1e9, v)),
    "floor.min_swap_bytes": ("size or 0", lambda v: floor(STEP, min_swap_bytes=v)),
    "lower_bound.capacity_bytes": ("capacity", lambda v: lower_bound(STEP, v, LINK, checkpoints=1)),
    "lower_bound.link": ("link", lambda v: lower_bound(STEP, SIZE, v, checkpoints=1)),
    "lower_bound.min_swap_bytes": (
        "size or 0",
        lambda v: lower_bound(STEP, SIZE, LINK, min_swap_bytes=v, checkpoints=1),
    ),
    "plan.capacity_bytes": ("capacity", lambda v: plan(STEP, v, LINK)),
    "plan.link": ("link", lambda v: plan(STEP, SIZE, v)),
    "plan.min_swap_bytes": ("size or 0", lambda v: plan(STEP, SIZE, LINK, min_swap_bytes=v)),
    "plan.margin": ("fraction", lambda v: plan(STEP, SIZE, LINK, margin=v)),
    "plan.link_margin": ("fraction", lambda v: plan(STEP, SIZE, LINK, link_margin=v)),
    "plan.reserve_bytes": ("size or 0", lambda v: plan(STEP, SIZE, LINK, reserve_bytes=v)),
    "plan.host_capacity_bytes": ("capacity", lambda v: plan(STEP, SIZE, LINK, host_capacity_bytes=v)),
    "simulate.capacity_bytes": ("capacity", lambda v: simulate(STEP, PLAN, v).capacity_bytes),
    "simulate.link": ("link", lambda v: simulate(STEP, PLAN, link=v).step_s),
    "simulate.host_capacity_bytes": (
        "capacity",
        lambda v: simulate(STEP, PLAN, host_capacity_bytes=v).host_capacity_bytes,
    ),
    "suggest.capacity_bytes": ("capacity", lambda v: suggest(STEP, v)),
    "suggest.link": ("link", lambda v: suggest(STEP, 0.5, link=v)),
    "sweep.capacities": ("capacity", lambda v: sweep(STEP, [v], LINK).points),
    "sweep.link": ("link", lambda v: sweep(STEP, [SIZE], v).points),
    "sweep.within": ("share", lambda v: sweep(STEP, [SIZE], LINK, within=v).within),
    "sweep.min_swap_bytes": ("size or 0", lambda v: sweep(STEP, [SIZE], LINK, min_swap_bytes=v).points),
    "sweep.margin": ("fraction", lambda v: sweep(STEP, [SIZE], LINK, margin=v).points),
    "sweep.link_margin": ("fraction", lambda v: sweep(STEP, [SIZE], LINK, link_margin=v).points),
    "sweep.reserve_bytes": ("size or 0", lambda v: sweep(STEP, [SIZE], LINK, reserve_bytes=v).points),
    "sweep.host_capacity_bytes": (
        "capacity",
        lambda v: sweep(STEP, [SIZE], LINK, host_capacity_bytes=v).host_capacity_bytes,
    ),
    "Draft.set_capacity.capacity": ("capacity", lambda v: PLAN.draft().set_capacity(v).capacity_bytes),
    "Draft.set_link.link": ("link", lambda v: PLAN.draft().set_link(v).link),
    "what_if.capacity": ("capacity", lambda v: what_if(STEP, ranks=8, capacity=v, link=LINK).capacity_bytes),
    "what_if.link": ("link", lambda v: what_if(STEP, ranks=8, capacity=SIZE, link=v).link),
    "Costs.network_bytes_per_s": ("bandwidth", lambda v: Costs(network_bytes_per_s=v)),
    "Edit.min_bytes": ("size or 0", lambda v: rule(min_bytes=v)),
    "Edit.max_bytes": ("size or 0", lambda v: rule(max_bytes=v)),
    "Edit.capacity_bytes": ("size", lambda v: Edit("capacity", capacity_bytes=v)),  # it has no step
    "Edit.link": ("link", lambda v: Edit("link", link=v)),
}
"""By parameter, what it takes, and a call that gives what was understood."""

OPTIONS = {
    "run --capacity": "Session.capacity",
    "run --link": "Session.link",
    "run --host-capacity": "Session.host_capacity",
    "run --min-swap": "Session.min_swap",
    "run --margin": "Session.margin",
    "run --link-margin": "Session.link_margin",
    "plan --capacity": "plan.capacity_bytes",
    "plan --link": "plan.link",
    "plan --host-capacity": "plan.host_capacity_bytes",
    "plan --min-swap": "plan.min_swap_bytes",
    "plan --margin": "plan.margin",
    "plan --link-margin": "plan.link_margin",
    "simulate --capacity": "simulate.capacity_bytes",
    "simulate --link": "simulate.link",
    "simulate --host-capacity": "simulate.host_capacity_bytes",
    "sweep --capacity": "sweep.capacities",
    "sweep --link": "sweep.link",
    "sweep --host-capacity": "sweep.host_capacity_bytes",
    "recover --capacity": "what_if.capacity",
    "recover --link": "what_if.link",
    "advise --within": "sweep.within",
    "advise --link": "Session.link",
    "%chameleon --capacity": "Session.capacity",
    "%chameleon --link": "Session.link",
}
"""By option, the parameter that it is for."""

_NAMES = re.compile(r"capacit|bytes|link|margin|min_swap|within|efficiency|fraction|share|size|limit|memory")
_MADE_BY_OTHERS = {
    *("Bound", "Decision", "Finding", "Floor", "Policy", "Prediction", "Report", "StepTrace", "Suggestion"),
    *(
        "Outlook",
        "Way",
        "Sweep",
        "SweepPoint",
        "Ops",
        "Replays",
        "Segments",
        "Stalls",
        "Storages",
        "Transfers",
    ),
}
"""Records that functions here make: nobody spells their fields."""
_NUMBERS = {"format_bytes.size", "Link.out_s.size", "Link.in_s.size", "means_named.block_bytes"}
"""Parameters that are for figures which a program has, not for what a person writes."""

_SAME_SIZES = [SIZE, float(SIZE), np.int64(SIZE), str(SIZE), f"{SIZE}e0", f"{SIZE // 1024}KiB"]
_SAME_SIZES += [f" {SIZE // 1024} k ", f"{SIZE / 1024**2!r}MiB", f"{SIZE}b"]
_NO_SIZES = ["much", "", "12 parsecs", -1, True, "-1", "1.5", float("nan"), [SIZE], b"1MiB", 10**400]
_SAME_SHARES = [0.05, "0.05", "5%", " 5 % ", "5e-2", np.float64(0.05)]
_NO_SHARES = ["much", "", "1MiB", -0.1, "-1%", True, [0.1], float("nan")]
_SAME_LINKS = [1e9, 10**9, "1e9", "1GB/s", " 1 gb/s", "1000000kB/s"]
_NO_LINKS = ["1GB", "fast", "", 0, -1.0, True, "0GB/s", float("inf")]
SAME: dict[str, list[list[Any]]] = {
    "size": [_SAME_SIZES],
    "size or 0": [_SAME_SIZES, [0, "0", "0MiB"]],
    "capacity": [_SAME_SIZES, [0.8, "0.8", "80%", " 80 %", "8e-1", np.float64(0.8)], [1.0, "1.0", "100%"]],
    "fraction": [_SAME_SHARES],
    "share": [_SAME_SHARES, [1.5, "1.5", "150%"]],
    "bandwidth": [_SAME_LINKS],
    "link": [[*_SAME_LINKS, LINK, (1e9, "1GB/s"), ["1e9", 1e9], "1e9,1GB/s", "1GB/s , 1GB/s"]],
}
"""By what a parameter takes, spellings that mean the same."""
WRONG: dict[str, list[Any]] = {
    "size": [*_NO_SIZES, 0, "0", 0.6, "60%"],
    "size or 0": [*_NO_SIZES, 0.6, "60%"],
    "capacity": [*_NO_SIZES, 0, "0", 1.5, "150%", "0%", "0.0"],
    "fraction": [*_NO_SHARES, 1.5, "150%"],
    "share": _NO_SHARES,
    "bandwidth": _NO_LINKS,
    "link": [*_NO_LINKS, (1e9,), "1e9,1e9,1e9", ("1e9", "fast")],
}


def public_parameters() -> Iterator[str]:
    """Of what the packages export, every parameter that may take one of these."""
    found = {name: getattr(of, name) for of in (trace, policy, planner, recovery, cl) for name in of.__all__}
    found |= {"evict_always": testing.evict_always, "SessionKeeper": SessionKeeper}
    for name, value in found.items():
        calls = {name: value}
        if inspect.isclass(value):
            if issubclass(value, Exception):
                continue
            own = {key: getattr(value, key) for key in vars(value) if not key.startswith("_")}
            calls |= {f"{name}.{key}": call for key, call in own.items() if callable(call)}
        for path, call in calls.items():
            if path in _MADE_BY_OTHERS or not callable(call):
                continue
            try:
                parameters = inspect.signature(call).parameters
            except ValueError:  # of an enumeration
                continue
            yield from (f"{path}.{key}" for key in parameters if _NAMES.search(key))


def options() -> Iterator[tuple[str, click.Option | None]]:
    """Of every command, and of the magics."""
    for name, command in chameleon.commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and _NAMES.search(option.name or ""):
                yield f"{name} {option.opts[0]}", option
    for action in _session_options("")._actions:
        if _NAMES.search(action.dest):
            yield f"%chameleon {action.option_strings[0]}", None


def test_no_parameter_is_left_out() -> None:
    assert set(public_parameters()) - _NUMBERS == set(TAKES)
    assert {name for name, _ in options()} == set(OPTIONS)


def read(option: str, text: str) -> Any:
    """What a command, or the magic, makes of an option."""
    name, option = option.split()
    if name == "%chameleon":
        return getattr(_session_options("").parse([option, text]), option[2:])
    command = chameleon.commands[name]
    (known,) = (known for known in command.params if option in known.opts)
    others = {"plan": ["t.parquet"], "sweep": ["t.parquet"], "simulate": ["t.parquet", "p.json"]}
    others["recover"] = ["t.parquet", "--ranks", "8"]
    if name not in others:
        others[name] = ["train.py"]
    needed = ["--capacity", "1MiB"] if name == "plan" and option != "--capacity" else []
    values = command.make_context(name, [*needed, option, text, *others[name]]).params[known.name]
    return values[0] if known.multiple else values


@pytest.mark.parametrize("name", TAKES)
def test_a_parameter_takes_every_spelling(name: str) -> None:
    kind, call = TAKES[name]
    for same in SAME[kind]:
        meant = call(same[0])
        for value in same[1:]:
            assert call(value) == meant, f"{name}={value!r} is not {same[0]!r}"


@pytest.mark.parametrize("name", TAKES)
def test_a_parameter_refuses_what_is_none(name: str) -> None:
    kind, call = TAKES[name]
    for value in WRONG[kind]:
        with pytest.raises((ValueError, TypeError), match=name.split(".")[-1][:6]):  # it says of what
            pytest.fail(f"{name}={value!r} is understood as {call(value)!r}")


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_takes_every_spelling_that_is_text(option: str) -> None:
    kind, call = TAKES[OPTIONS[option]]
    for same in SAME[kind]:
        meant = call(same[0])
        for text in same:
            if isinstance(text, str):
                assert call(read(option, text)) == meant, f"{option} {text!r} is not {same[0]!r}"


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_refuses_text_that_is_none(option: str) -> None:
    kind, call = TAKES[OPTIONS[option]]
    for text in WRONG[kind]:
        if isinstance(text, str) and not text.startswith("-"):
            with pytest.raises((ValueError, click.UsageError)):
                pytest.fail(f"{option} {text!r} is understood as {call(read(option, text))!r}")


def test_a_drafts_rules_take_the_selectors_of_an_edit() -> None:
    for make in (Draft.keep, Draft.swap, Draft.never_touch, Draft.rematerialize, Draft.never_rematerialize):
        (edit,) = make(PLAN.draft(), min_bytes="1MiB", max_bytes="0.5GiB").edits
        assert (edit.min_bytes, edit.max_bytes) == (1 << 20, 1 << 29)
    (edit,) = PLAN.draft().prefetch(ops_earlier=2, min_bytes=" 64 k").edits
    assert edit.min_bytes == 1 << 16
