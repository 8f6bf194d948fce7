"""Pickles of plain values, read without Python's unpickler: there is nothing in here that could call anything.

A pickle is a program for a stack machine. This one knows the instructions of protocols 2 to 5 that make numbers,
texts, lists, tuples and dictionaries. What would import, call or build an object is refused by its name. A file is
read through a window, and dictionaries may be taken out as soon as they are whole (``taken``), so that a list of
millions of them never stands in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ..errors import TraceError
from .source import Source

_MOST_DEPTH = 1 << 12
_MOST_STACK = 1 << 17
_MOST_TEXT = 1 << 24
_MOST_HELD = 1 << 21
"""Containers that are not taken out."""
_REFUSED = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
_MARK = object()
_MARGIN = 16
"""Bytes of the longest instruction but for its text."""


class PlainPickle:
    """One file.

    Args:
        source: its bytes.
        taken: gets each dictionary when its items are known, and gives what stands in its place from then on: the
            dictionary itself, or something smaller; then how many containers it has taken in, itself included.
    """

    def __init__(self, source: Source, taken: Callable[[dict[Any, Any]], tuple[Any, int]]) -> None:
        self._source, self._taken = source, taken
        self._data, self._at, self._before, self._ended = b"", 0, 0, False

    def load(self) -> Any:
        """The value. Raises TraceError if the file is no pickle, damaged, or more than plain values."""
        try:
            return self._run()
        except (IndexError, TypeError, KeyError, struct.error, OverflowError) as error:
            raise TraceError(
                f"{self._source.path}: this pickle is damaged ({type(error).__name__}: {error}); copy or write it again"
            ) from None

    def _fill(self, size: int) -> None:
        """Have ``size`` bytes in the window, or all that are left."""
        parts, held = [self._data[self._at :]], len(self._data) - self._at
        self._before += self._at
        while held < size and not self._ended:
            piece = self._source.read()
            self._ended = not piece
            parts.append(piece)
            held += len(piece)
        self._data, self._at = b"".join(parts), 0

    def _text(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` in the window on; the place moves behind them."""
        if size > _MOST_TEXT:
            raise self._refusal(f"a text of {size} bytes, and at most {_MOST_TEXT} are read")
        if at + size > len(self._data):
            self._at = at
            self._fill(size)
            at = self._at
        text = self._data[at : at + size]
        if len(text) < size:
            raise self._cut()
        self._at = at + size
        return text

    def _cut(self) -> TraceError:
        size = self._before + len(self._data)
        return TraceError(
            f"{self._source.path}: this pickle is cut after {size} bytes; copy or write it again"
        )

    def _refusal(self, what: str) -> TraceError:
        return TraceError(
            f"{self._source.path}: refused: this pickle holds {what}. A memory snapshot holds plain values only; "
            "do not open this file with other tools unless you trust whoever made it"
        )

    def _run(self) -> Any:  # noqa: C901  # one loop: calls would cost more than what they do
        stack: list[Any] = []
        marks: list[int] = []
        memo: list[Any] = []
        memo_of: dict[int, list[int]] = {}  # of dictionaries that are not whole yet
        held = 0
        unpack_int, unpack_double = struct.Struct("<i").unpack_from, struct.Struct(">d").unpack_from
        push, taken = stack.append, self._taken
        self._fill(_MARGIN)
        data, at = self._data, self._at
        limit = len(data) - _MARGIN
        while True:
            if at > limit and not (self._ended and at < len(data)):
                self._at = at
                self._fill(_MARGIN)
                data, at = self._data, 0
                limit = len(data) - _MARGIN
                if len(stack) > _MOST_STACK or len(marks) > _MOST_DEPTH:
                    raise self._refusal("values too deep in each other")
                if held > _MOST_HELD:
                    raise self._refusal(f"more than {_MOST_HELD} lists and dictionaries that are no events")
                if len(memo) > (1 << 20) + (self._before + at) // 8:
                    raise self._refusal("a memo larger than its values")
                if at >= len(data):
                    raise self._cut()
            code = data[at]
            at += 1
            if code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x6A:  # LONG_BINGET
                push(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == 0x8A:  # LONG1
                size = data[at]
                if size > _MARGIN - 2:
                    raise self._refusal(f"a number of {size} bytes")
                push(int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True))
                at += 1 + size
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x4A:  # BININT
                push(unpack_int(data, at)[0])
                at += 4
            elif code == 0x4D:  # BININT2
                push(data[at] | data[at + 1] << 8)
                at += 2
            elif code == 0x94:  # MEMOIZE
                value = stack[-1]
                if type(value) is dict:
                    memo_of.setdefault(id(value), []).append(len(memo))
                memo.append(value)
            elif code == 0x7D:  # EMPTY_DICT
                push({})
                held += 1
            elif code == 0x28:  # MARK
                marks.append(len(stack))
                push(_MARK)
            elif code == 0x75 or code == 0x73:  # SETITEMS, SETITEM
                begin = marks.pop() if code == 0x75 else len(stack) - 3
                first = begin + 1
                owner = stack[begin - 1] if code == 0x75 else stack[begin]
                if type(owner) is not dict:
                    raise TypeError("items of what is no dictionary")
                keys, values = stack[first::2], stack[first + 1 :: 2]
                if len(keys) != len(values):
                    raise TypeError("an odd number of keys and values")
                for key in keys:
                    if type(key) is not str and type(key) is not int:
                        raise TypeError(f"a key of type {type(key).__name__}")
                owner.update(zip(keys, values, strict=True))
                place = begin - 1 if code == 0x75 else begin
                del stack[place + 1 :]
                value, inside = taken(owner)
                if value is not owner:
                    held -= inside
                    stack[place] = value
                    for number in memo_of.pop(id(owner), ()):
                        memo[number] = value
            elif code == 0x4E:  # NONE
                push(None)
            elif code == 0x88 or code == 0x89:  # NEWTRUE, NEWFALSE
                push(code == 0x88)
            elif code == 0x5D:  # EMPTY_LIST
                push([])
                held += 1
            elif code == 0x65 or code == 0x61:  # APPENDS, APPEND
                begin = marks.pop() if code == 0x65 else len(stack) - 1
                owner = stack[begin - 1]
                if type(owner) is not list:
                    raise TypeError("items of what is no list")
                owner.extend(stack[begin + 1 :] if code == 0x65 else stack[begin:])
                del stack[begin:]
            elif code == 0x86:  # TUPLE2
                stack[-2:] = [(stack[-2], stack[-1])]
                held += 1
            elif code in (0x29, 0x85, 0x87, 0x74):  # EMPTY_TUPLE, TUPLE1, TUPLE3, TUPLE
                if code == 0x74:
                    begin = marks.pop()
                    made = tuple(stack[begin + 1 :])
                else:
                    begin = len(stack) - {0x29: 0, 0x85: 1, 0x87: 3}[code]
                    made = tuple(stack[begin:])
                    if begin < 0:
                        raise IndexError("a tuple of values that are not there")
                del stack[begin:]
                push(made)
                held += 1
            elif code in (0x8C, 0x58, 0x8D):  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                wide = {0x8C: 1, 0x58: 4, 0x8D: 8}[code]
                size = int.from_bytes(data[at : at + wide], "little")
                text = self._text(at + wide, size)
                data, at = self._data, self._at
                limit = len(data) - _MARGIN
                push(text.decode("utf-8", "replace"))
            elif code == 0x71 or code == 0x72:  # BINPUT, LONG_BINPUT
                wide = 1 if code == 0x71 else 4
                number = int.from_bytes(data[at : at + wide], "little")
                at += wide
                value = stack[-1]
                if number > len(memo):
                    raise self._refusal(f"a memo with number {number} after {len(memo)}")
                if number == len(memo):
                    memo.append(value)
                else:
                    memo[number] = value
                if type(value) is dict:
                    memo_of.setdefault(id(value), []).append(number)
            elif code == 0x47:  # BINFLOAT
                push(unpack_double(data, at)[0])
                at += 8
            elif code == 0x95:  # FRAME
                at += 8
            elif code == 0x80:  # PROTO
                if data[at] > 5:
                    raise self._refusal(f"protocol {data[at]}, and 2 to 5 are read")
                at += 1
            elif code == 0x2E:  # STOP
                if len(stack) != 1 or marks:
                    raise TypeError("values left over")
                return stack[0]
            elif code == 0x30:  # POP
                if stack.pop() is _MARK:
                    marks.pop()
            elif code in (0x43, 0x42, 0x8E):  # SHORT_BINBYTES, BINBYTES, BINBYTES8
                raise self._refusal("raw bytes")
            elif code in _REFUSED:
                self._at = at
                raise self._refusal(self._named(code, stack))
            else:
                raise TypeError(f"instruction {code:#04x} is none of a plain pickle")

    def _named(self, code: int, stack: list[Any]) -> str:
        """What an instruction asks for, in words."""
        name = _REFUSED[code]
        what = ""
        if code in (0x63, 0x69):
            what = self._data[self._at : self._at + 200].decode("utf-8", "replace")
            what = ".".join(what.split("\n")[:2])
        elif code == 0x93 and len(stack) > 1:
            what = f"{stack[-2]}.{stack[-1]}"
        shown = "".join(letter if letter.isprintable() else "?" for letter in what[:100])
        return f"code ({name}{f' of {shown}' if shown else ''})"
