"""SQL92 as Java's own filter has it: every result of generated expressions over generated properties."""

from __future__ import annotations

import json
import random
import subprocess

from kourou.broker.messages.bloom import BloomFilter
from kourou.broker.messages.filter_data import ConsumerFilters
from kourou.broker.messages.sql92 import BadExpressionError, EvaluationError, compile_sql
from kourou.clock import SystemClock
from kourou.remoting.protocol.subscription import SQL92, SubscriptionData
from support.java import RUN, RUN_TIMEOUT_S

EXPRESSIONS = 500
PROPERTY_SETS = 50
NAMES = ["a", "b", "c", "_d", "$e", "TAGS"]
# Texts that Java reads as numbers and Python does not, or the other way round, and neighbours of limits
VALUES = [
    "5", "-5", "+5", "0", "10", "007", "5.0", "5.", ".5", "-0.0", "0.0", "1e3", "1E-3", "1f", "2.5D",
    "0x10", "0x1p3", "0x.8P1d", "-0x1p99999", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan", "1_000",
    " 5", "5 ", "\t5\n", "", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "1e400", "1e-400", "١٢", "５", "𝟓", "0" * 30 + "5",
    "9" * 40, "true", "TRUE", "True", "false", "abc", "ABC", "abcabc", "it's", "é", "5a", "e5", "--5", "+",
    "-", ".", "e", "0x", "null", "\u00a05", "1e", "1e+", "0b1", "5L",
]  # fmt: skip
TEXTS = [
    "'abc'",
    "'ABC'",
    "'it''s'",
    "''",
    "''''",
    "'5'",
    "'5.0'",
    "'true'",
    "'é'",
    "'a\nb'",
    "'c'",
    "'-- x'",
    "'x5'",
]
NUMBERS = [
    "5", "0", "10", "5L", "3l", "2147483647", "2147483648", "9223372036854775807", "5.0", "5.", ".5", "1e3",
    "1E-3", "5.5e+1", "4.9e-324",
]  # fmt: skip
# Refused, or read as less than they seem
ODD_NUMBERS = [
    "0L", "007", "9223372036854775808", "0.0", ".0", "1e400", "1e-400", "0x10", "1e", "12abc",
]  # fmt: skip
SPACES = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\f",
    " /* a * b */ ",
    " /***/ ",
    " -- rest\n",
    " --\r",
]
RUBBISH = [
    "#",
    ")",
    "(",
    "'",
    "b",
    "+ 2",
    ", 3",
    "= ",
    "AND",
    "OR b",
    "NOT",
    "IS",
    "LIKE 'x'",
    "--",
    "/*",
    "5",
    "é",
    ";",
]


class Generator:
    """Expressions, most of them well formed. The same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self) -> str:
        words = self.either(3)
        chance = self.random.random()
        if chance < 0.06:
            words.append(self.random.choice(RUBBISH))
        elif chance < 0.12:
            words.insert(self.random.randrange(len(words) + 1), self.random.choice(RUBBISH))
        elif chance < 0.16:
            del words[self.random.randrange(len(words))]
        text = "".join(word + self.random.choice(SPACES) for word in words)
        return text if self.random.random() < 0.5 else text.strip()

    def keyword(self, text: str) -> list[str]:
        change = self.random.choice([str.upper, str.upper, str.lower, str.title])
        return [change(word) for word in text.split()]

    def either(self, depth: int) -> list[str]:
        chance = self.random.random()
        if depth == 0 or chance < 0.3:
            return self.condition(depth)
        if chance < 0.55:
            return [*self.either(depth - 1), *self.keyword("AND"), *self.either(depth - 1)]
        if chance < 0.8:
            return [*self.either(depth - 1), *self.keyword("OR"), *self.either(depth - 1)]
        if chance < 0.9:
            return [*self.keyword("NOT"), "(", *self.either(depth - 1), ")"]
        return ["(", *self.either(depth - 1), ")"]

    def condition(self, depth: int) -> list[str]:
        pick = self.random.choice
        left = [pick(NAMES)] if self.random.random() < 0.7 else self.operand(depth)
        kind = self.random.randrange(12)
        negated = self.keyword(pick(["", "NOT"]))
        if kind < 3:
            return [*left, pick([">", ">=", "<", "<="]), *self.number()]
        if kind < 6:
            return [*left, pick(["=", "<>"]), *self.operand(depth)]
        if kind == 6:
            return [*left, *self.keyword("IS"), *negated, *self.keyword("NULL")]
        if kind == 7:
            bounds = [*self.number(), *self.keyword("AND"), *self.number()]
            return [*left, *negated, *self.keyword("BETWEEN"), *bounds]
        if kind == 8:
            texts = ", ".join(pick(TEXTS) for _ in range(self.random.randrange(1, 7)))
            return [pick(NAMES), *negated, *self.keyword("IN"), "(", texts, ")"]
        if kind < 11:
            operator = self.keyword(pick(["CONTAINS", "STARTSWITH", "ENDSWITH"]))
            return [*left, *negated, *operator, pick(TEXTS)]
        return [*self.keyword("NOT"), *left] if pick([True, False]) else left

    def number(self) -> list[str]:
        chance = self.random.random()
        if chance < 0.6:
            return [self.random.choice(NUMBERS)]
        if chance < 0.8:
            return ["-", self.random.choice(NUMBERS)]
        return self.operand(0) if chance < 0.85 else [self.random.choice(NAMES)]

    def operand(self, depth: int) -> list[str]:
        pick, chance = self.random.choice, self.random.random()
        if chance < 0.5:
            return [pick(NAMES)]
        if chance < 0.62:
            return [pick(["-", "- -", "+", "-"]), pick(NAMES + NUMBERS + TEXTS[:1])]
        if chance < 0.68 and depth > 0:
            return ["(", *self.either(depth - 1), ")"]
        if chance < 0.74:
            return self.keyword(pick(["TRUE", "FALSE", "NULL"]))
        if chance < 0.76:
            return [pick(ODD_NUMBERS)]
        return [pick(TEXTS + NUMBERS)]

    def properties(self) -> dict[str, str]:
        count = self.random.randrange(len(NAMES) + 1)
        return {name: self.random.choice(VALUES) for name in self.random.sample(NAMES, count)}


def ask(mode: str, *requests: object) -> list[str]:
    """The answers of Java's filter."""
    done = subprocess.run(
        [RUN, "SqlFilter", mode],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    lines = done.stdout.decode().splitlines()
    return [line[2:] for line in lines if line.startswith("> ")]


def letters(expression: str, sets: list[dict[str, str]]) -> str:
    """Our results, in the form of SqlFilter.java."""
    try:
        compiled = compile_sql(expression)
    except BadExpressionError:
        return "P"
    found = []
    for properties in sets:
        try:
            found.append({True: "T", False: "F", None: "N"}[compiled.evaluate(properties)])
        except EvaluationError:
            found.append("E")
    return "".join(found)


def test_every_result_is_that_of_java(java):
    generator = Generator(92)
    expressions = [generator.expression() for _ in range(EXPRESSIONS)]
    sets = [generator.properties() for _ in range(PROPERTY_SETS)]

    answers = ask("evaluate", sets, *expressions)

    assert len(answers) == EXPRESSIONS
    different = {}
    for expression, answer in zip(expressions, answers, strict=True):
        ours = letters(expression, sets)
        if ours != answer:
            at = next((i for i, pair in enumerate(zip(ours, answer)) if len(set(pair)) > 1), 0)
            different[expression] = (f"Java {answer[at]}, ours {ours[at]}", sets[at])
    assert not different
    counts = {letter: "".join(answers).count(letter) for letter in "PTFNE"}
    assert 30 < counts.pop("P") < EXPRESSIONS / 2, counts  # the table says something of each kind
    assert all(count > 1000 for count in counts.values()), counts


def test_values_are_read_as_java_reads_them(java):
    names = {
        "int": "a > 4",
        "long": "a < 5000000000",
        "double": "a >= .5",
        "texts": "a <= b",
        "boolean": "a = TRUE",
    }
    sets = [{"a": a, "b": b} for a in VALUES for b in VALUES[::3]]

    answers = ask("evaluate", sets, *names.values())

    assert dict(zip(names, answers)) == {kind: letters(text, sets) for kind, text in names.items()}


def test_bits_lie_where_java_puts_them(java):
    texts = ["g#t", "", "%RETRY%g#é中𝟓", "group" * 20 + "#" + "topic" * 20]
    sizes = [(f, n) for f in (1, 10, 20, 25, 50, 99) for n in (1, 7, 32, 100, 4096)]

    answers = ask("bloom", *({"f": f, "n": n, "texts": texts} for f, n in sizes))

    for (f, n), answer in zip(sizes, answers, strict=True):
        bloom, expected = BloomFilter(f, n), json.loads(answer)
        assert (bloom.hash_count, bloom.bit_num) == (expected["k"], expected["m"])
        assert [list(bloom.positions(text)) for text in texts] == expected["positions"]


def test_the_file_is_taken_over_in_both_directions(java):
    clock = SystemClock()
    filters = ConsumerFilters(clock, BloomFilter(20, 64), 24 * 3_600_000)  # the sizes of Java's tests
    for group, topic in (("g", "t"), ("h", "t"), ("g", "é")):
        filters.register(group, SubscriptionData(topic, "a > 5 AND b <> 'é'", 7, expression_type=SQL92))
    filters.unregister("h")
    ours = json.loads(filters.encode())

    (answer,) = ask("decode", ours)
    again = ConsumerFilters(clock, BloomFilter(20, 64), 24 * 3_600_000)
    again.decode(json.loads(answer))

    theirs = json.loads(answer)["filterDataByTopic"]
    assert {topic: set(item["groupFilterData"]) for topic, item in theirs.items()} == {
        "t": {"g", "h"},
        "é": {"g"},
    }
    assert json.loads(again.encode()) == json.loads(answer)
    for topic, item in ours["filterDataByTopic"].items():
        for group, data in item["groupFilterData"].items():
            found = theirs[topic]["groupFilterData"][group]
            kept = {"bloomFilterData", "bornTime", "clientVersion", "expression", "expressionType", "topic"}
            assert {name: found[name] for name in kept} == {name: data[name] for name in kept}
            assert set(found) == set(data)
