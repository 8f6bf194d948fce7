"""The Gantt chart of a draft, to edit it: select bars, press a button, and see the new plan and its prediction."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...errors import BelowFloorError
from ...planner import Draft, simulate
from ...policy.edits import Edit, EditAction
from ...policy.model import NEVER
from ...report.dry_run import FIGURES
from ...trace.overlap import DEFINITION
from .bokeh_view import bokeh_widget
from .gantt import Gantt, line_of
from .packages import load, load_widgets
from .palette import INK_2

if TYPE_CHECKING:
    from ipywidgets import DOMWidget

_SHOWN = ("peak_bytes", "step_s", "stall_s", "replay_s", "overlap")


class DraftGantt(Gantt):
    """A draft as a Gantt chart with buttons. Edits are staged on the draft: nothing runs under them.

    Tap bars (Shift adds more) or draw a box around them, then press Keep, Swap, Rematerialize and so on. Each
    press is one change of the draft, which Undo takes back. The same from code: :meth:`select`, then :meth:`keep`
    and so on; :meth:`refresh` after the draft was changed elsewhere.

    Raises:
        MissingPackageError: bokeh is not installed.
        BelowFloorError: no policy fits the draft as it is.
    """

    title = "Draft"

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.base_prediction = simulate(draft.step, draft.base, op_times=draft.op_times)
        self.message = ""
        """What the last change could not do, in words; empty if nothing."""
        self._selected: tuple[tuple[str, int], ...] = ()
        self._reselecting = False
        super().__init__(draft.policy(), draft.step, draft.predict())
        self._bytes.step(
            x="op",
            y="bytes",
            mode="after",
            source=load("bokeh.models", "bokeh", "figures").ColumnDataSource(line_of(self.base_prediction)),
            line_color=INK_2,
            line_width=1,
            legend_label="Before the edits",
        )
        self.bars.selected.on_change("indices", self._picked)

    # ------------------------------------------------------------------------------------------------ selecting

    @property
    def selected(self) -> tuple[tuple[str, int], ...]:
        """The selected gaps: key of the storage, and ordinal of the gap."""
        return self._selected

    def select(self, *gaps: tuple[str, int] | str) -> DraftGantt:
        """Select gaps, or every gap drawn of a storage, by its key. Raises ValueError if one is not drawn."""
        drawn = [(gap.storage, gap.gap) for gap in self.gaps.rows]
        chosen: list[tuple[str, int]] = []
        for wanted in gaps:
            found = [gap for gap in drawn if wanted in (gap, gap[0])]
            if not found:
                raise ValueError(
                    f"{wanted!r} is not drawn: it has no gap to leave in, or is too small to be shown; "
                    "draft.keep(...) and the like edit it all the same"
                )
            chosen += found
        self._select(chosen)
        return self

    def _select(self, gaps: Iterable[tuple[str, int]]) -> None:
        """Select gaps with all their parts; what is not drawn is left out."""
        wanted = set(gaps)
        keys = list(zip(self.bars.data["storage"], self.bars.data["gap"], strict=True))
        self._selected = tuple(dict.fromkeys(key for key in keys if key in wanted))
        self._reselecting = True
        try:
            self.bars.selected.indices = [index for index, key in enumerate(keys) if key in wanted]
        finally:
            self._reselecting = False
        self._tell()

    def _picked(self, attr: str, old: list[int], new: list[int]) -> None:
        """Bars were selected in the browser: a part stands for its whole gap."""
        if not self._reselecting:
            data = self.bars.data
            self._select((data["storage"][index], data["gap"][index]) for index in new)

    # ------------------------------------------------------------------------------------------------ editing

    def keep(self) -> None:
        """Keep what is selected on the device, in the selected gaps."""
        self._set_residence(EditAction.KEEP)

    def swap(self) -> None:
        """Swap what is selected, in the selected gaps."""
        self._set_residence(EditAction.SWAP)

    def rematerialize(self) -> None:
        """Drop what is selected in the selected gaps, and have the ops replayed that made it."""
        self._set_residence(EditAction.REMATERIALIZE)

    def never_rematerialize(self) -> None:
        """Never drop the selected storages, in no gap: they stay or are swapped."""
        edits = [
            edit
            for edit in self.draft.edits
            if not (edit.action is EditAction.REMATERIALIZE and edit.storage in dict(self._selected))
        ]
        for storage in dict(self._selected):
            never = Edit(EditAction.NEVER_REMATERIALIZE, storage)
            edits += [never] if never not in edits else []
        self._stage(edits)

    def never_touch(self) -> None:
        """Keep the selected storages in all their gaps, and evict them last."""
        self._set_residence(EditAction.NEVER_TOUCH)

    def shift(self, ops_earlier: int) -> None:
        """Bring the selected storages back so many ops earlier than now, or later where it is negative."""
        edits = list(self.draft.edits)
        for storage, gap in self._selected:
            before = [e for e in edits if e.action is EditAction.PREFETCH and _names(e, storage, gap)]
            edits = [edit for edit in edits if edit not in before]
            ops = ops_earlier + sum(edit.ops_earlier or 0 for edit in before)
            if ops:
                edits.append(Edit(EditAction.PREFETCH, storage, gap=_ordinal(gap), ops_earlier=ops))
        self._stage(edits)

    def undo(self) -> None:
        """Take back the draft's last change."""
        self.draft.undo()
        self.refresh()

    def redo(self) -> None:
        """Make the draft's last undone change again."""
        self.draft.redo()
        self.refresh()

    def _set_residence(self, action: EditAction) -> None:
        edits = list(self.draft.edits)
        for storage, gap in self._selected:
            whole = action is EditAction.NEVER_TOUCH
            # What was said of the same before would contradict, or be more specific and decide.
            edits = [
                edit
                for edit in edits
                if not (
                    edit.is_residence and edit.storage == storage and (whole or _names(edit, storage, gap))
                )
            ]
            edits.append(Edit(action, storage, gap=None if whole else _ordinal(gap)))
        self._stage(edits)

    def _stage(self, edits: list[Edit]) -> None:
        if not self._selected:
            self.message = "Nothing is selected: tap a bar first."
            self._tell()
            return
        self.draft.edits = tuple(edits)
        self.refresh()

    def refresh(self) -> None:
        """Plan and predict the draft as it is now, and draw it."""
        selected = self._selected
        try:
            policy, prediction = self.draft.policy(), self.draft.predict()
        except BelowFloorError as error:
            self.message = f"{error}. The drawing shows the plan before this change, which Undo takes back."
        else:
            self.message = "\n".join(str(finding) for finding in self.draft.validate())
            self.redraw(policy, prediction)
            self._select(selected)
        self._tell()

    # ------------------------------------------------------------------------------------------------ showing

    def summary_html(self) -> str:
        """What the draft changes in the prediction, its edits, and what is wrong with them."""
        rows = "".join(
            f"<tr{_means(name)}><td>{what}</td><td>{shown(getattr(self.base_prediction, name))}</td>"
            f"<td><b>{shown(getattr(self.prediction, name))}</b></td></tr>"
            for what, name, shown in FIGURES
            if name in _SHOWN
        )
        edits = "".join(f"<li>{html.escape(str(edit))}</li>" for edit in self.draft.edits)
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.message.splitlines())
        return (
            f"<table><tr><th></th><th>before</th><th>draft</th></tr>{rows}</table>"
            f"{f'<ol>{edits}</ol>' if edits else '<p>No edits.</p>'}{said}"
        )

    @cached_property
    def widget(self) -> DOMWidget:
        """The chart under its buttons. Raises MissingPackageError without ipywidgets and jupyter_bokeh."""
        load_widgets("jupyter_bokeh")
        import ipywidgets

        self._ops = ipywidgets.BoundedIntText(
            value=max(1, len(self.step.ops) // 50),
            min=1,
            max=len(self.step.ops),
            description="ops",
            layout={"width": "150px"},
        )
        actions: dict[str, Callable[[], None]] = {
            "Keep": self.keep,
            "Swap": self.swap,
            "Rematerialize": self.rematerialize,
            "Never rematerialize": self.never_rematerialize,
            "Never touch": self.never_touch,
            "Earlier": lambda: self.shift(self._ops.value),
            "Later": lambda: self.shift(-self._ops.value),
            "Undo": self.undo,
            "Redo": self.redo,
        }
        self._buttons = {}
        for name, action in actions.items():
            button = ipywidgets.Button(description=name, layout={"width": "auto"})
            button.on_click(_pressed(action))
            self._buttons[name] = button
        row = [*self._buttons.values()]
        row.insert(list(actions).index("Later") + 1, self._ops)
        self._selection = ipywidgets.HTML()
        self._summary = ipywidgets.HTML()
        box = ipywidgets.VBox(
            [
                ipywidgets.HBox(row, layout={"flex_flow": "row wrap"}),
                self._selection,
                bokeh_widget(self.layout),
                self._summary,
            ]
        )
        self._tell(box)
        return box

    def _tell(self, box: Any = None) -> None:
        """Bring the text and the buttons up to date, where they are shown."""
        if box is None and "widget" not in self.__dict__:
            return
        names = [key if gap == NEVER else f"{key}, gap {gap}" for key, gap in self._selected]
        selection = (
            "Tap bars to select them (Shift adds more), or draw a box around them."
            if not names
            else f"Selected: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        )
        self._selection.value = html.escape(selection)
        self._summary.value = self.summary_html()
        self._buttons["Undo"].disabled = not self.draft.can_undo
        self._buttons["Redo"].disabled = not self.draft.can_redo
        for name, button in self._buttons.items():
            if name not in ("Undo", "Redo"):
                button.disabled = not names


def _names(edit: Edit, storage: str, gap: int) -> bool:
    """Is an edit about this gap, and no other?"""
    return edit.storage == storage and edit.gap == _ordinal(gap)


def _means(name: str) -> str:
    return f' title="{html.escape(DEFINITION)}"' if name == "overlap" else ""


def _ordinal(gap: int) -> int | None:
    """The gap as an edit names it: what no op uses has none."""
    return None if gap == NEVER else gap


def _pressed(action: Callable[[], None]) -> Callable[[Any], None]:
    return lambda button: action()
