"""Steps while plans are made and looked at, on a machine that is idle or busy: a step should not take longer for it.

Two runs of each model behind a link on which swapping alone stalls. The first is a session as it comes: what the step
takes at whose end the first plan is made, and each later step over the median of those that follow the same plan. The
second has a policy from the start. In every second half of a round something goes on beside its steps: a search for
another plan, in the way in which sessions do; edits of the draft in the panel, each planned for, and the table read;
the panel's drawing of the newest step; saving the trace. Steps beside that and steps beside nothing, in pairs. The
second run also says what a step's end takes, in which the session reads what was recorded.
"""

from __future__ import annotations

import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import chameleon_lab as cl
from chameleon_lab.lab.panel.comm import NEWS_EVERY_S
from chameleon_lab.lab.panel.sources import Sources
from chameleon_lab.policy import Policy
from chameleon_lab.util.units import format_percent

from . import measure
from .editor import Panel
from .measure import median, progress
from .models import Case, Job, gpt_job

BUSY = (0, 1, 2)
"""Processes beside the training, each of which takes a core."""
SHARE = 0.35
"""Of the peak, that the sessions have."""
LINK_PEAKS = 0.7
"""Of the peak, that the link moves in a plain step, each way."""
RUN_IN, PAIR = 4, 4
"""Steps of the second run before the first pair; of each half of a pair."""


def _vit(tiny: bool) -> Job:
    from transformers import ViTConfig, ViTForImageClassification

    width, layers, heads, batch = (32, 2, 2, 2) if tiny else (160, 10, 5, 24)
    shape = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=32, patch_size=4, num_labels=10,
    )  # fmt: skip

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(pixel_values=images).logits, labels)

    return _job(ViTForImageClassification(shape), partial(_images, batch), loss)


def _bert(tiny: bool) -> Job:
    from transformers import BertConfig, BertForSequenceClassification

    width, layers, batch, length = (32, 2, 2, 16) if tiny else (96, 6, 8, 128)
    shape = BertConfig(
        vocab_size=1000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=4 * width, max_position_embeddings=length, num_labels=10,
    )  # fmt: skip

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(1000, (batch, length), generator=generator)
        return tokens, torch.randint(10, (batch,), generator=generator)

    def loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(input_ids=tokens).logits, labels)

    return _job(BertForSequenceClassification(shape), batches, loss)


class UNet(nn.Module):
    """Down and up again, with a skip on each level: images (batch, 3, side, side) to noise of the same shape."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            _level(inside, outside) for inside, outside in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            _level(outside + inside, inside)
            for outside, inside in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The noise."""
        skips = []
        for level in self.down:
            x = level(nn.functional.avg_pool2d(x, 2) if skips else x)
            skips.append(x)
        for level, skip in zip(self.up, skips[-2::-1], strict=True):
            x = level(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip], dim=1))
        noise: Tensor = self.head(x)
        return noise


def _level(inside: int, outside: int) -> nn.Module:
    def half(first: int) -> list[nn.Module]:
        return [nn.Conv2d(first, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU()]

    return nn.Sequential(*half(inside), *half(outside), *half(outside))


def _unet(tiny: bool) -> Job:
    width, levels, batch = (8, 2, 2) if tiny else (16, 4, 4)

    def loss(model: nn.Module, images: Tensor, _: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(images), images)

    return _job(UNet(width, levels), partial(_images, batch), loss)


def _images(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32, generator=generator), torch.randint(
        10, (batch,), generator=generator
    )


def _job(model: nn.Module, batches: Any, loss: Any) -> Job:
    return Job(model, torch.optim.AdamW(model.parameters(), lr=1e-4), batches, loss)


def _gpt(tiny: bool) -> Job:
    return gpt_job(*((4, 32, 64, 2, 3) if tiny else (4, 256, 96, 3, 6)), dropout=0.0)


CASES = (
    Case("GPT", "character GPT of 6 layers and width 96 on 4 x 256 characters", _gpt),
    Case("ViT", "transformers' ViT: 10 layers of width 160, 24 images of 32 x 32", _vit),
    Case("BERT", "transformers' BERT: 6 layers of width 96, 8 x 128 tokens", _bert),
    Case("U-Net", "4 levels of 3 convolutions, 4 images of 32 x 32", _unet),
)


class _Training:
    """The same steps from the seed on, timed. Their ends too, where they are told to a session."""

    def __init__(self, case: Case, tiny: bool, session: cl.Session | None = None) -> None:
        self.job, self._session = case.build(measure.SEED, tiny), session
        self.end_s: list[float] = []
        self.generator = torch.Generator().manual_seed(measure.SEED)
        self.losses: list[float] = []

    def step(self) -> float:
        """Seconds of a step."""
        batch = self.job.make_batch(self.generator)
        begin_s = time.perf_counter()
        loss = self.job.train_step(batch)
        if self._session is not None:
            trained_s = time.perf_counter()
            self._session.step()
            self.end_s.append(time.perf_counter() - trained_s)
        took_s = time.perf_counter() - begin_s
        self.losses.append(loss.item())
        return took_s

    def steps(self, count: int) -> list[float]:
        """Seconds of each of some steps."""
        return [self.step() for _ in range(count)]


class _Beside(ABC):
    """Does one thing after another in a block's time, beside what is done in the block.

    Attributes:
        made: how often.
        rest_s: seconds between two.
        per_block: times that a block waits for.
    """

    rest_s = 0.0
    per_block = 1

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._error: Exception | None = None
        self.made = 0

    @abstractmethod
    def make(self) -> None:
        """The next one."""

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self.make()
                self.made += 1
                self._ends.wait(self.rest_s)
        except Exception as error:  # raised where the block ends
            self._error = error

    @property
    def goes_on(self) -> bool:
        """Has it not failed?"""
        return self._error is None

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """The last one has ended behind the block."""
        self._ends.clear()
        thread = threading.Thread(target=self._run, name="beside")
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()
        if self._error is not None:
            raise self._error


class _Searches(_Beside):
    """Makes plans, in the way in which a session's search does."""

    def __init__(self, session: cl.Session, policy: Policy) -> None:
        super().__init__()
        self._session, self._policy = session, policy
        self._step = session.trace().steps[-1]
        self._call = partial(session._apart, session._searcher)

    def make(self) -> None:
        """A plan."""
        self._session._planned_anew(
            self._step, self._policy.capacity_bytes, (), before=self._policy, call=self._call
        )

    @property
    def mean_s(self) -> float:
        """Of a processor, for each."""
        return self._session._searcher.spent_s / max(self.made, 1)


class _Edits(_Beside):
    """Edits the draft of the open session, as the panel asks for it, and waits for the plan of each edit."""

    rest_s = NEWS_EVERY_S

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self._panel = panel
        self._panel.planned()
        self._storages = [row["storage"] for row in self._panel.rows("swap")]

    def make(self) -> None:
        """An edit, its plan, and a page of the table under it."""
        storage = self._storages[self.made % len(self._storages)]
        state = self._panel.ask("edit", change="set", edits=[{"action": "keep", "storage": storage}])
        while not state["exact"]:
            time.sleep(NEWS_EVERY_S)  # a panel asks again when it hears of news
            state = self._panel.ask("draft")
        self._panel.rows()


class _Drawings(_Beside):
    """Draws the newest step as often as the panel may: status, scene, and the view of all of it."""

    rest_s, per_block = NEWS_EVERY_S, 3

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self._panel = panel

    def make(self) -> None:
        """A drawing."""
        newest = self._panel.ask("status")["session"]["steps"][-1]["index"]
        drawn = {"first": newest, "last": newest}
        end = self._panel.ask("scene", **drawn)["length"]["time"]
        self._panel.ask(
            "view", **drawn, axis="time", start=0.0, end=end, width=1200, height=600, rows="storage"
        )


class _Saves(_Beside):
    """Saves the trace of the newest steps."""

    rest_s, per_block = NEWS_EVERY_S, 3

    def __init__(self, session: cl.Session, folder: str) -> None:
        super().__init__()
        self._session, self._path = session, Path(folder, "trace.parquet")

    def make(self) -> None:
        """A file."""
        self._session.trace().save(self._path)


def _paired(training: _Training, beside: _Beside, rounds: int) -> dict[str, Any]:
    """Steps beside something, and as many beside nothing, in turns."""
    with_it: list[float] = []
    alone: list[float] = []
    end_s: list[float] = []
    for _ in range(rounds):
        block: list[float] = []
        until = beside.made + beside.per_block
        with beside.going_on():
            while beside.goes_on and (len(block) < PAIR or beside.made < until):
                block.append(training.step())
        with_it += block
        alone += training.steps(len(block))
        end_s += training.end_s[-len(block) :]
    return {
        "made": beside.made,
        "beside_s": with_it,
        "alone_s": alone,
        "ratio": measure.ratio(with_it, alone),
        "worst_beside": max(with_it) / median(with_it),
        "worst_alone": max(alone) / median(alone),
        "end_over_step": median(end_s) / median(alone),
    }


def row_of(case: Case, others: int, steps: int, rounds: int, tiny: bool) -> dict[str, Any]:
    """One model beside some busy processes: figures of both runs."""
    plain = _Training(case, tiny)
    plain_s = median(plain.steps(8)[2:])
    with cl.Session(device="cpu") as session:
        _Training(case, tiny).steps(3)
        recorded = session.report()
    peak_bytes, lowest = recorded.peak_bytes, recorded.floor
    settings: dict[str, Any] = {"device": "cpu", "link": f"{int(LINK_PEAKS * peak_bytes / plain_s)}B/s"}
    capacity_bytes = max(int(SHARE * peak_bytes), int(1.5 * lowest.bytes) if lowest else 0)
    with measure.busy(others):
        with cl.Session(capacity_bytes, **settings) as session:
            as_it_comes = _Training(case, tiny)
            step_s = as_it_comes.steps(steps)
            session._plans.wait()
            step_s.append(as_it_comes.step())
            report, policy = session.report(), session.policy
        assert policy is not None
        with (
            cl.Session(capacity_bytes, policy=policy, **settings) as session,
            tempfile.TemporaryDirectory() as folder,
            closing(Sources()) as sources,
        ):
            paired = _Training(case, tiny, session)
            paired.steps(RUN_IN)
            named = sources.session()
            assert named is not None
            searches, panel = _Searches(session, policy), Panel(sources, named[0])
            pairs = {
                "search": _paired(paired, searches, rounds),
                "edits": _paired(paired, _Edits(panel), rounds),
                "drawing": _paired(paired, _Drawings(panel), rounds),
                "saving": _paired(paired, _Saves(session, folder), rounds),
            }
    return {
        "model": case.name,
        "about": case.about,
        "busy": others,
        "capacity_bytes": capacity_bytes,
        "same_losses": _same(plain, as_it_comes) and _same(as_it_comes, paired),
        "ops": report.newest.ops,
        "plain_s": plain_s,
        **_as_it_came(step_s, report),
        "search_s": searches.mean_s,
        "beside": pairs,
    }


def _same(a: _Training, b: _Training) -> bool:
    count = min(len(a.losses), len(b.losses))
    return a.losses[:count] == b.losses[:count]


def _as_it_came(step_s: Sequence[float], report: cl.Report) -> dict[str, Any]:
    """The first run's figures."""
    history = report.history
    first = next(plan for plan in report.plans if plan.decisions)
    of_plan: dict[int, list[float]] = {}
    for took_s, step in zip(step_s, history, strict=True):
        if step.index > first.made_from_step:
            of_plan.setdefault(step.plan, []).append(took_s)
    at = next(k for k, step in enumerate(history) if step.index == first.made_from_step)
    newest = next((plan for plan in reversed(report.plans) if plan.search_s), None)
    return {
        "step_s": list(step_s),
        "plan": [step.plan for step in history],
        "first_planning_over_step": (step_s[at] - history[at].step_s) / median(step_s[-10:]),
        "worst_of_its_plan": max(max(took) / median(took) for took in of_plan.values()),
        "first_plan_s": median(of_plan[first.plan]) if first.plan in of_plan else 0.0,
        "last_plan_s": median(step_s[-10:]),
        "plans": [(plan.why, plan.search_s, plan.gained_s, plan.followed_steps) for plan in report.plans],
        "search_found_s": newest.gained_s if newest else 0.0,
    }


HEADERS = (
    "model", "busy", "ops", "same loss", "plain ms", "planning at once", "worst of its plan", "first plan ms",
    "last plan ms", "step's end", "a search CPU s", "s", "search", "worst", "alone", "edits", "worst", "alone",
    "drawing", "worst", "alone", "saving", "worst", "alone",
)  # fmt: skip


def printed(row: dict[str, Any]) -> list[str]:
    """A row as it is printed."""
    search = row["beside"]["search"]
    return [
        row["model"],
        str(row["busy"]),
        str(row["ops"]),
        measure.yes(row["same_losses"]),
        measure.milliseconds(row["plain_s"]),
        f"{row['first_planning_over_step']:.2f}",
        f"{row['worst_of_its_plan']:.2f}",
        measure.milliseconds(row["first_plan_s"]),
        measure.milliseconds(row["last_plan_s"]),
        format_percent(search["end_over_step"]),
        f"{row['search_s']:.2f}",
        f"{sum(search['beside_s']) / search['made']:.2f}",
        *(
            text
            for pair in row["beside"].values()
            for text in (
                f"{pair['ratio']:.3f}",
                f"{pair['worst_beside']:.2f}",
                f"{pair['worst_alone']:.2f}",
            )
        ),
    ]


ABOUT = f"""
Beside 0 to 2 processes that never rest; {SHARE:.0%} of the peak, behind a link that moves {LINK_PEAKS:.0%} of it in a
plain step. Planning at once: what making the first plan adds to its step, over the settled step. Worst of its plan: the
longest step from the first plan on, over the median of those that followed the same plan. Step's end: what reading the
records takes of a step. A search: its seconds of a processor, and of the training beside it. Search: medians of steps
beside a search over those beside nothing, in turns of {PAIR} or more, under one policy; and the longest of each over
its median. The same beside edits in the panel, each planned for; beside the panel's drawing of the newest step; beside
saving the trace: {NEWS_EVERY_S} s between two of them."""


def measured(only: str, steps: int, rounds: int, tiny: bool) -> Iterator[dict[str, Any]]:
    """The rows of the models with a text in their name."""
    for case in CASES:
        if only.lower() in f"planning beside {case.name.lower()}":
            for others in BUSY:
                progress(f"planning beside {case.name}, {others} busy processes")
                yield row_of(case, others, steps, rounds, tiny)
