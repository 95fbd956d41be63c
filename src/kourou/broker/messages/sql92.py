"""SQL92: the expressions that a subscription filters messages by (rocketmq-filter, SelectorParser).

    a BETWEEN 1 AND 10 AND (region = 'eu' OR region IS NULL) AND NOT name STARTSWITH 'test'

What a reader must know, as in Java:

- Properties are texts. Beside a number they are read as one: as an int beside 5, as a long beside 5000000000,
  as a double beside 5.0 and beside another property (`a > b`). A text that is no such number is an error of
  evaluation, and the message does not match.
- A comparison with what is not there is neither true nor false (None), and so is what is made of it by AND,
  OR and NOT where the other side does not decide.
- NOT binds tighter than any comparison: `NOT a = 1` is `(NOT a) = 1`.
- What follows a complete expression is not looked at: `a = 1 b` is `a = 1`.
- `0.0` is refused, as every double that is not positive; `-0.5` is the negation of one that is.

An expression is parsed once, into closures over the properties: what it compares with what is known then, so
that no type is looked at when a message comes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, lru_cache
from math import copysign, inf, isinf, isnan
from typing import Any, NoReturn, Protocol

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode

# What an expression may cost who parses it (some 50 ms) and who asks it about a message (some 0.3 ms).
MAX_LENGTH = 16 * 1024
MAX_TOKENS = 4000  # enough for a thousand comparisons; texts and commas are not counted, for long lists
MAX_NESTING = 100
CACHED_EXPRESSIONS = 256
MAX_DECISIONS = 1000  # of an expression, each about values of at most MAX_DECIDED_BYTES
MAX_DECIDED_BYTES = 128

Properties = Mapping[str, str]
Run = Callable[[Properties], Any]


class BadExpressionError(KourouError):
    """An expression that cannot be used; `column`, from 1, is where."""

    response_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED

    def __init__(self, column: int, reason: str) -> None:
        super().__init__(f"column {column}: {reason}")
        self.column = column
        self.reason = reason


class EvaluationError(KourouError):
    """A message whose properties an expression cannot be asked about."""


class Sql92:
    """A compiled expression."""

    __slots__ = ("_run", "decisions", "expression", "names")

    def __init__(self, expression: str, names: frozenset[str], run: Run) -> None:
        self.expression = expression
        self.names = names  # of the properties that it looks at
        self._run = run
        self.decisions: dict[tuple[bytes | None, ...], bool] = {}  # by the values that `names` have

    def __repr__(self) -> str:
        return f"Sql92({self.expression!r})"

    def evaluate(self, properties: Properties) -> bool | None:
        """Whether it holds; None if that cannot be said. EvaluationError where a text should be a number."""
        result: bool | None = self._run(properties)
        return result

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted: only if the expression surely holds."""
        try:
            return self._run(properties) is True
        except EvaluationError:
            return False

    def remember(self, values: tuple[bytes | None, ...], matches: bool) -> None:
        """Note whether messages with these values are wanted: most filters look at few different ones."""
        if sum(len(value) for value in values if value is not None) <= MAX_DECIDED_BYTES:
            if len(self.decisions) >= MAX_DECISIONS:
                self.decisions.clear()
            self.decisions[values] = matches


def compile_sql(expression: str) -> Sql92:
    """The expression, compiled; BadExpressionError says where it cannot be understood."""
    compiled = _compile(expression) if len(expression) <= MAX_LENGTH else _TOO_LONG
    if isinstance(compiled, Sql92):
        return compiled
    raise BadExpressionError(*compiled)


_TOO_LONG = (MAX_LENGTH + 1, f"the expression is longer than {MAX_LENGTH} characters")


@lru_cache(maxsize=CACHED_EXPRESSIONS)
def _compile(expression: str) -> Sql92 | tuple[int, str]:
    """The compiled expression, or column and reason: mistakes are repeated as often as the rest."""
    try:
        node = _as_boolean(_parse(expression))
    except BadExpressionError as error:
        return error.column, error.reason
    return Sql92(expression, node.names, node.run)


# Parsing

_GRAMMAR = r"""
?start: either

?either: both     | both (_OR both)+         -> any_of
?both: equality   | equality (_AND equality)+ -> all_of

?equality: comparison
    | equality "=" comparison   -> equal
    | equality "<>" comparison  -> not_equal
    | equality _IS NULL         -> is_null
    | equality _IS _NOT NULL    -> is_not_null

?comparison: unary
    | comparison ">" unary      -> greater
    | comparison ">=" unary     -> greater_equal
    | comparison "<" unary      -> less
    | comparison "<=" unary     -> less_equal
    | comparison _CONTAINS TEXT         -> contains
    | comparison _NOT _CONTAINS TEXT    -> not_contains
    | comparison _STARTSWITH TEXT       -> starts_with
    | comparison _NOT _STARTSWITH TEXT  -> not_starts_with
    | comparison _ENDSWITH TEXT         -> ends_with
    | comparison _NOT _ENDSWITH TEXT    -> not_ends_with
    | comparison _BETWEEN unary _AND unary       -> between
    | comparison _NOT _BETWEEN unary _AND unary  -> not_between
    | comparison _IN "(" TEXT ("," TEXT)* ")"       -> in_texts
    | comparison _NOT _IN "(" TEXT ("," TEXT)* ")"  -> not_in_texts

?unary: "+" unary
    | "-" unary   -> negate
    | _NOT unary  -> invert
    | primary

?primary: "(" either ")"
    | NAME   -> property_of
    | TEXT   -> text
    | WHOLE  -> whole
    | FLOAT  -> double
    | TRUE   -> true
    | FALSE  -> false
    | NULL   -> null

NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
TEXT: /'(?:''|[^'])*'/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE: /0|[1-9][0-9]*[lL]?/
LINE_COMMENT.2: /--[^\n\r]*+(?:\r\n|\n|\r)/
BLOCK_COMMENT: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
%ignore /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%declare _NOT _AND _OR _BETWEEN _IN _IS _CONTAINS _STARTSWITH _ENDSWITH TRUE FALSE NULL
"""

_KEYWORDS = {
    word.lstrip("_"): word
    for word in (
        "_NOT", "_AND", "_OR", "_BETWEEN", "_IN", "_IS", "_CONTAINS", "_STARTSWITH", "_ENDSWITH",
        "TRUE", "FALSE", "NULL",
    )
}  # fmt: skip
_PREFIXES = frozenset({"LPAR", "MINUS", "PLUS", "_NOT"})
_UNCOUNTED = frozenset({"TEXT", "COMMA"})


def _parse(expression: str) -> _Node:
    """The longest prefix that is an expression. The token behind it is read, and need not make sense."""
    parser: Any = _parser().parse_interactive(expression)  # half of its methods have no types
    count = prefixes = 0
    token: Token | None = None
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            prefixes = prefixes + 1 if token.type in _PREFIXES else 0
            if prefixes > MAX_NESTING:
                raise BadExpressionError(_column(token), "nested too deep")
            count += token.type not in _UNCOUNTED
            if count > MAX_TOKENS:
                raise BadExpressionError(_column(token), f"more than {MAX_TOKENS} words and signs")
            try:
                parser.feed_token(token)
            except UnexpectedToken as error:
                try:
                    node: _Node = parser.feed_eof(token)
                except UnexpectedToken:
                    raise BadExpressionError(_column(token), f"unexpected {str(token)[:40]!r}") from error
                return node
        node = parser.feed_eof(token)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        reason = "the text is not closed" if expression[at] == "'" else f"unexpected {expression[at]!r}"
        raise BadExpressionError(at + 1, reason) from None
    except UnexpectedToken:
        raise BadExpressionError(len(expression) + 1, "the expression ends too early") from None
    return node


@cache
def _parser() -> Lark:
    return Lark(
        _GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(token: Token) -> Token:
    keyword = _KEYWORDS.get(token.upper())
    return token if keyword is None else token.update(type=keyword)


def _column(token: Token) -> int:
    return (token.start_pos or 0) + 1


# What an expression is made of


class _Kind(Enum):
    """What an expression gives, besides None."""

    PROPERTY = auto()  # a text
    TEXT = auto()
    INTEGER = auto()  # of 32 bits
    LONG = auto()  # of 64
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()  # the negation of what is no number


_NUMBERS = frozenset({_Kind.INTEGER, _Kind.LONG, _Kind.DOUBLE})
_TEXTS = frozenset({_Kind.PROPERTY, _Kind.TEXT})


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression. `value` is that of a constant, or the name of a property."""

    kind: _Kind
    run: Run
    column: int
    value: Any = None
    literal: bool = False  # a constant as it is written: what Java checks is checked for these
    names: frozenset[str] = frozenset()
    depth: int = 1


def _node(run: Run, parts: Sequence[_Node], kind: _Kind = _Kind.BOOLEAN) -> _Node:
    """What is made of parts."""
    column, depth = parts[0].column, 1 + max(part.depth for part in parts)
    if depth > MAX_NESTING:
        raise BadExpressionError(column, "nested too deep")
    names = parts[0].names if len(parts) == 1 else frozenset().union(*(part.names for part in parts))
    return _Node(kind, run, column, names=names, depth=depth)


def _constant(kind: _Kind, value: Any, token: Token) -> _Node:
    return _Node(kind, lambda _: value, _column(token), value, literal=True)


def _text_of(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer[Token, _Node]):
    """Makes the nodes as the parser finds them, with the checks that Java makes then."""

    def property_of(self, token: Token) -> _Node:
        name = str(token)
        return _Node(
            _Kind.PROPERTY, lambda properties: properties.get(name), _column(token), name,
            names=frozenset((name,)),
        )  # fmt: skip

    def text(self, token: Token) -> _Node:
        return _constant(_Kind.TEXT, _text_of(token), token)

    def whole(self, token: Token) -> _Node:
        digits = token.rstrip("lL")
        value = int(digits) if len(digits) < 20 else _LONG_MAX + 1
        if value > _LONG_MAX:
            raise BadExpressionError(_column(token), f"{digits[:40]} is more than 64 bits hold")
        return _constant(_Kind.INTEGER if value <= _INT_MAX else _Kind.LONG, value, token)

    def double(self, token: Token) -> _Node:
        value = float(token)
        if value == 0 or isinf(value):
            raise BadExpressionError(_column(token), f"{token[:40]} is out of the range of a double")
        return _constant(_Kind.DOUBLE, value, token)

    def true(self, token: Token) -> _Node:
        return _constant(_Kind.BOOLEAN, True, token)

    def false(self, token: Token) -> _Node:
        return _constant(_Kind.BOOLEAN, False, token)

    def null(self, token: Token) -> _Node:
        return _constant(_Kind.BOOLEAN, None, token)

    def negate(self, node: _Node) -> _Node:
        if node.kind in _NUMBERS:
            value = -node.value
            return replace(_node(lambda _: value, [node], node.kind), value=value)
        run = node.run

        def nothing(properties: Properties) -> None:
            run(properties)  # it may fail

        return _node(nothing, [node], _Kind.NOTHING)

    def invert(self, node: _Node) -> _Node:
        return _not(_as_boolean(node))

    def any_of(self, *nodes: _Node) -> _Node:
        return _any_of([_as_boolean(node) for node in nodes])

    def all_of(self, *nodes: _Node) -> _Node:
        return _all_of([_as_boolean(node) for node in nodes])

    def equal(self, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.literal and node.value is None:
                raise BadExpressionError(node.column, "NULL cannot be compared: use IS NULL")
        if left.literal and right.literal and left.kind is _Kind.BOOLEAN and right.kind is not left.kind:
            raise BadExpressionError(right.column, f"{left.value} cannot be compared with {right.value}")
        return _equal(left, right)

    def not_equal(self, left: _Node, right: _Node) -> _Node:
        return _not(self.equal(left, right))

    def is_null(self, node: _Node, _: Token) -> _Node:
        run = node.run
        if node.kind is _Kind.PROPERTY:
            name = node.value
            return _node(lambda properties: name not in properties, [node])
        return _node(lambda properties: run(properties) is None, [node])

    def is_not_null(self, node: _Node, token: Token) -> _Node:
        return _not(self.is_null(node, token))

    def greater(self, left: _Node, right: _Node) -> _Node:
        return _ordered(operator.gt, left, right)

    def greater_equal(self, left: _Node, right: _Node) -> _Node:
        return _ordered(operator.ge, left, right)

    def less(self, left: _Node, right: _Node) -> _Node:
        return _ordered(operator.lt, left, right)

    def less_equal(self, left: _Node, right: _Node) -> _Node:
        return _ordered(operator.le, left, right)

    def between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        if low.literal and high.literal and low.kind in _NUMBERS and high.kind in _NUMBERS:
            first, last = _same_kind(low, high)
            if last < first:
                raise BadExpressionError(high.column, f"BETWEEN {low.value} AND {high.value} has no room")
        parts = [_ordered(operator.ge, node, low), _ordered(operator.le, node, high)]
        if node.kind is _Kind.PROPERTY and low.kind is high.kind and low.kind in _NUMBERS:
            return _node(_range_test(node.value, low, high), parts)
        return _all_of(parts)

    def not_between(self, node: _Node, low: _Node, high: _Node) -> _Node:
        return _any_of([_ordered(operator.lt, node, low), _ordered(operator.gt, node, high)])

    def in_texts(self, node: _Node, *texts: Token) -> _Node:
        return _in_texts(node, texts, True)

    def not_in_texts(self, node: _Node, *texts: Token) -> _Node:
        return _in_texts(node, texts, False)

    def contains(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.__contains__, node, text, True)

    def not_contains(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.__contains__, node, text, False)

    def starts_with(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.startswith, node, text, True)

    def not_starts_with(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.startswith, node, text, False)

    def ends_with(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.endswith, node, text, True)

    def not_ends_with(self, node: _Node, text: Token) -> _Node:
        return _text_test(str.endswith, node, text, False)


# Logic of three values


def _as_boolean(node: _Node) -> _Node:
    if node.kind is _Kind.BOOLEAN:
        return node
    if node.kind is not _Kind.PROPERTY:
        raise BadExpressionError(node.column, "neither true nor false can come of this")
    name = node.value  # a text is never true
    return _node(lambda properties: False if name in properties else None, [node])


def _not(node: _Node) -> _Node:
    run = node.run

    def invert(properties: Properties) -> bool | None:
        value = run(properties)
        return None if value is None else not value

    return _node(invert, [node])


def _any_of(nodes: Sequence[_Node]) -> _Node:
    runs = tuple(node.run for node in nodes)

    def any_of(properties: Properties) -> bool | None:
        result: bool | None = False
        for run in runs:
            value = run(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return _node(any_of, nodes)


def _all_of(nodes: Sequence[_Node]) -> _Node:
    runs = tuple(node.run for node in nodes)

    def all_of(properties: Properties) -> bool | None:
        result: bool | None = True
        for run in runs:
            value = run(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return _node(all_of, nodes)


# Texts


class _TextTest(Protocol):
    def __call__(self, text: str, search: str, /) -> bool: ...


def _text_test(test: _TextTest, node: _Node, token: Token, wanted: bool) -> _Node:
    """CONTAINS and its kin: never None; the negation is false too where there is no text."""
    search, run = _text_of(token), node.run
    if not search or node.kind not in _TEXTS:

        def never(properties: Properties) -> bool:
            if search:
                run(properties)  # it may fail
            return False

        return _node(never, [node])

    def text_test(properties: Properties) -> bool:
        text = run(properties)
        return text is not None and test(text, search) is wanted

    return _node(text_test, [node])


def _in_texts(node: _Node, tokens: Sequence[Token], wanted: bool) -> _Node:
    if node.kind is not _Kind.PROPERTY:
        raise BadExpressionError(node.column, "only a property can be IN a list")
    name, texts = node.value, frozenset(map(_text_of, tokens))

    def in_texts(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in texts) is wanted

    return _node(in_texts, [node])


# Comparisons

_Compare = Callable[[Any, Any], bool]


def _ordered(compare: _Compare, left: _Node, right: _Node) -> _Node:
    """`<`, `<=`, `>` and `>=`: of numbers, and of properties that are read as numbers."""
    for node in (left, right):
        if node.literal and node.kind not in _NUMBERS:
            raise BadExpressionError(node.column, "this cannot be compared by order")
        if node.kind is _Kind.BOOLEAN:
            raise BadExpressionError(node.column, "what is true or false cannot be compared by order")
    return _node(_order_test(compare, left, right), [left, right])


def _order_test(compare: _Compare, left: _Node, right: _Node) -> Run:
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        result = compare(*_same_kind(left, right))
        return lambda _: result
    if left.kind is _Kind.PROPERTY and right.kind in _NUMBERS:
        name, number, read = left.value, right.value, _READERS[right.kind]

        def property_first(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else compare(read(text), number)

        return property_first
    if left.kind in _NUMBERS and right.kind is _Kind.PROPERTY:
        name, number, read = right.value, left.value, _READERS[left.kind]

        def number_first(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else compare(number, read(text))

        return number_first
    left_run, right_run = left.run, right.run

    def properties_or_nothing(properties: Properties) -> bool | None:
        first = left_run(properties)
        second = None if first is None else right_run(properties)
        return None if second is None else compare(_place(_double(first)), _place(_double(second)))

    return properties_or_nothing


def _range_test(name: str, low: _Node, high: _Node) -> Run:
    """BETWEEN two numbers of a kind."""
    first, last, read = low.value, high.value, _READERS[low.kind]

    def in_range(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else first <= read(text) <= last

    return in_range


def _equal(left: _Node, right: _Node) -> _Node:
    if left.kind is _Kind.PROPERTY and right.kind is _Kind.TEXT:
        name, wanted = left.value, right.value

        def is_text(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else text == wanted

        return _node(is_text, [left, right])
    left_run, right_run, compare = left.run, right.run, _equality(left, right)

    def equal(properties: Properties) -> bool | None:
        first, second = left_run(properties), right_run(properties)
        if first is None:
            return True if second is None else None
        return False if second is None else compare(first, second)

    return _node(equal, [left, right])


def _equality(left: _Node, right: _Node) -> _Compare:
    """How values of these kinds are compared, when both are there."""
    if left.kind in _TEXTS:
        if right.kind is _Kind.BOOLEAN:
            return lambda text, boolean: (text.lower() == "true") is boolean
        if right.kind in _NUMBERS:
            read = _READERS[right.kind]
            return lambda text, number: read(text) == number
        return operator.eq
    if left.kind in _NUMBERS:
        if right.kind in _NUMBERS:
            first, second = _same_kind(left, right)
            return lambda _left, _right: first == second
        if right.kind in _TEXTS:
            read = _READERS[left.kind]
            return lambda number, text: number == read(text)
        return lambda _left, _right: False
    if right.kind in _TEXTS:
        return _refuse_text  # Java cannot, in this order
    if right.kind in _NUMBERS:
        return lambda _left, _right: False
    return operator.is_


def _refuse_text(_: bool, text: str) -> NoReturn:
    raise EvaluationError(f"true or false cannot be compared with {text[:40]!r}")


def _same_kind(left: _Node, right: _Node) -> tuple[Any, Any]:
    """Two numbers, as doubles if one of them is."""
    if left.kind is _Kind.DOUBLE or right.kind is _Kind.DOUBLE:
        return float(left.value), float(right.value)
    return left.value, right.value


# Numbers as Java reads them

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_WHOLE = re.compile(r"[+-]?\d+").fullmatch
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
).fullmatch
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
).fullmatch
_TRIMMED = "".join(map(chr, range(33)))


def _integer(text: str) -> int:
    if len(text) < 10 and text.isdecimal() and text.isascii():
        return int(text)
    return _whole(text, _INT_MIN, _INT_MAX)


def _long(text: str) -> int:
    if len(text) < 19 and text.isdecimal() and text.isascii():
        return int(text)
    return _whole(text, _LONG_MIN, _LONG_MAX)


def _whole(text: str, least: int, most: int) -> int:
    """Integer.valueOf, Long.valueOf: digits of any script, one UTF-16 unit each."""
    if _WHOLE(text) and max(text) <= "\uffff":
        sign = -1 if text[0] == "-" else 1
        digits = text.lstrip("+-").lstrip("0") or "0"
        if len(digits) < 1000:  # any more overflow, or are zeros of another script that nobody writes
            value = sign * int(digits)
            if least <= value <= most:
                return value
    raise EvaluationError(f"{text[:40]!r} is not a whole number of the size that it is compared with")


def _double(text: str) -> float:
    """Double.valueOf."""
    if text.isdecimal() and text.isascii():
        return float(text)
    trimmed = text.strip(_TRIMMED)
    if _DECIMAL(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if _HEXADECIMAL(trimmed):
        try:
            return float.fromhex(trimmed[:-1] if trimmed[-1] in "fFdD" else trimmed)
        except OverflowError:
            return -inf if trimmed[0] == "-" else inf
    raise EvaluationError(f"{text[:40]!r} is not a number")


def _double_to_constant(text: str) -> float:
    """A double to be compared with a finite one that is not zero. NaN is beyond all numbers (compareTo)."""
    value = _double(text)
    return inf if isnan(value) else value


def _place(value: float) -> tuple[int, float]:
    """Where a double stands in the order of Double.compareTo: -0.0 before 0.0, NaN behind all."""
    if isnan(value):
        return 2, 0.0
    return (1 if value > 0 or (value == 0 and copysign(1, value) > 0) else 0), value


_READERS: dict[_Kind, Callable[[str], Any]] = {
    _Kind.INTEGER: _integer,
    _Kind.LONG: _long,
    _Kind.DOUBLE: _double_to_constant,
}
