"""Decoding of flows of symbols, modes 0, 1 and 3 (docs/spec/coding.md)."""

import packets
from field import INVERSE, TIMES, add_scaled
from wire import Malformed, Reader, nearest, require

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def coefficients(seed, bid, column, count):
    state = mix(seed ^ mix(bid * 256 + column + GOLDEN & MASK))
    column_bytes = bytearray()
    while len(column_bytes) < count:
        state = state + GOLDEN & MASK
        column_bytes += mix(state).to_bytes(8, "little")
    return bytes(byte or 1 for byte in column_bytes[:count])


class SymbolDecoder:
    """Solves the symbols of a flow."""

    def __init__(self, seed, limits, over_relays):
        self.seed, self.limits, self.over_relays = seed, limits, over_relays
        # BID and column of repairs so far.
        self.columns = set()
        self.kinds = set()
        self.symbols = {}
        # Equations by pivot: coefficients by symbol, and the payload. No pivot is in another one.
        self.rows = {}
        self.seen_end = 0

    def push(self, kind, payload):
        """Takes the payload of a coded packet; returns the numbers of the new symbols."""
        reader = Reader(payload)
        header = packets.CodingHeader(kind, reader)
        self.kinds.add(header.name)
        if header.name == "source":
            number = nearest(header.bid * 16 + header.column, 28, self.seen_end)
            equation = {number: 1}
        elif header.name == "recoded-source":
            first = nearest(header.bid * 16, 28, self.seen_end)
            equation = {first + i: c for i, c in enumerate(header.vector) if c}
            if not equation:
                raise Malformed("vector")
        else:
            equation = self.window(header)
        self.seen_end = max(self.seen_end, max(equation) + 1)
        require(reader.remaining() <= self.limits[3], "T4")
        return self.solve(equation, reader.rest())

    def window(self, header):
        if not 1 <= header.count <= 512:
            raise Malformed("window")
        require(header.count <= self.limits[6], "T4")
        if header.name == "repair" and not self.over_relays:
            require((header.bid, header.column) not in self.columns, "C2")
            self.columns.add((header.bid, header.column))
        first = nearest(header.first, 32, self.seen_end)
        if header.name == "repair":
            column = coefficients(self.seed, header.bid, header.column, header.count)
        else:
            column = bytes(header.count)
            for index, factor in enumerate(header.vector):
                if factor:
                    fresh = coefficients(self.seed, header.bid, index, header.count)
                    column = add_scaled(column, factor, fresh)
        return {first + i: c for i, c in enumerate(column) if c}

    def solve(self, equation, payload):
        for number in list(equation):
            if number in self.symbols:
                payload = add_scaled(payload, equation.pop(number), self.symbols[number])
        for pivot in [number for number in equation if number in self.rows]:
            equation, payload = subtract(equation, payload, pivot, self.rows[pivot])
        if not equation:
            return []
        pivot = min(equation)
        factor = INVERSE[equation[pivot]]
        equation = {number: TIMES[factor][c] for number, c in equation.items()}
        payload = payload.translate(TIMES[factor])
        for other, row in self.rows.items():
            if pivot in row[0]:
                self.rows[other] = subtract(*row, pivot, (equation, payload))
        self.rows[pivot] = equation, payload
        solved = [number for number, row in self.rows.items() if len(row[0]) == 1]
        for number in solved:
            self.symbols[number] = self.rows.pop(number)[1]
        return sorted(solved)


def subtract(equation, payload, pivot, row):
    """Removes `pivot` from an equation by its row, in which it has the coefficient 1."""
    factor = equation[pivot]
    result = dict(equation)
    for number, c in row[0].items():
        value = result.get(number, 0) ^ TIMES[factor][c]
        if value:
            result[number] = value
        else:
            result.pop(number, None)
    return result, add_scaled(payload, factor, row[1])
