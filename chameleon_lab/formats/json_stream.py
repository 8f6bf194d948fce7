"""JSON files whose one long list is read an item at a time.

The items are parsed by Python's own ``json`` (its scanner is C), from a window of the file; only how the outermost
object and its long list hang together is followed here. So the memory does not grow with the file. Parsers that report
every token as an event (ijson) take several times as long, and those that decode a whole document (msgspec, orjson)
hold it in memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import TraceError
from .source import Source

_MOST_ITEM = 1 << 24
"""Characters of one item, or of what stands beside the list."""

_LONGEST_WORD = 16
"""Characters by which an error's place may lie before the end of a text that only goes on behind it."""

_BLANKS = re.compile(r"[ \t\r\n]*")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


class JsonStream:
    """An object with one long list, or a long list alone.

    Args:
        source: the file.
        lists: names of the lists that are read item by item; the first found is.
    """

    def __init__(self, source: Source, lists: tuple[str, ...]) -> None:
        self.values: dict[str, Any] = {}
        """What stands beside the list: all of it once the items have been read to the end."""
        self.list_name = ""
        self.cut = False
        """Does the file end before its end? Its writer was not stopped, or it was copied in part."""
        self._source, self._lists = source, lists
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text, self._at, self._ended = "", 0, False

    def items(self) -> Iterator[Any]:
        """The list's items. Raises TraceError if the file is no JSON of this kind."""
        first = self._peek()
        if first == "\ufeff":
            self._at += 1
            first = self._peek()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise self._wrong("it is no JSON object")
        self._at += 1
        more = self._peek() == '"'
        while more:
            name = self._value()
            if not isinstance(name, str) or self._peek() != ":":
                raise self._wrong("a name without a value")
            self._at += 1
            if name in self._lists and not self.list_name and self._peek() == "[":
                self.list_name = name
                yield from self._list()
                if self.cut:
                    return
            else:
                self.values[name] = self._value()
            more = self._peek() == ","
            if more:
                self._at += 1
                more = self._peek() == '"'
        if self._peek() != "}":
            self.cut = self._peek() == ""
            if not self.cut:
                raise self._wrong(f"{self._peek()!r} where a name should be")

    def _list(self) -> Iterator[Any]:
        self._at += 1
        while True:
            next_ = self._peek()
            if next_ == "]":
                self._at += 1
                return
            if next_ == "":
                self.cut = True
                return
            if next_ == ",":  # after the last item, too: an observer that was not stopped leaves one
                self._at += 1
                continue
            try:
                yield self._value()
            except _CutError:
                self.cut = True
                return

    def _peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            found = _BLANKS.match(self._text, self._at)
            assert found is not None  # it matches nothing, too
            self._at = found.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The value that begins here."""
        if self._peek() == "":
            raise self._cut()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._wrong("values lie too deep in each other") from None
            except json.JSONDecodeError as error:
                unterminated = error.msg.startswith("Unterminated string")
                at_end = unterminated or error.pos >= len(self._text) - _LONGEST_WORD
                if at_end and self._grow():
                    continue
                raise (self._cut() if at_end else self._wrong(str(error))) from None
            except ValueError as error:
                raise self._wrong(str(error)) from None
            if end == len(self._text) and not self._ended:  # a number may go on
                self._grow()
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        """Take the next piece in place of what is read; False at the file's end."""
        piece = b"" if self._ended else self._source.read()
        self._ended = not piece
        self._text = self._text[self._at :] + self._decode(piece, not piece)
        self._at = 0
        return not self._ended

    def _grow(self) -> bool:
        """Make the window longer, by as much as it holds: so a long value is not begun too often."""
        want = 2 * (len(self._text) - self._at)
        if want > 2 * _MOST_ITEM:
            raise self._wrong(f"a value of more than {_MOST_ITEM} characters")
        grew = False
        while not self._ended and (not grew or len(self._text) < want):
            grew |= self._more() or bool(self._text)
        return grew

    def _cut(self) -> _CutError:
        return _CutError(
            f"{self._source.path}: the JSON file is cut; copy it again, or stop its observer before"
        )

    def _wrong(self, why: str) -> TraceError:
        return TraceError(f"{self._source.path}: this is no JSON of a profiler ({why[:200]})")


class _CutError(TraceError):
    """The file ends in the middle of a value."""
