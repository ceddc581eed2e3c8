"""GF(256) with the polynomial 0x11D (docs/spec/coding.md)."""


def _times(a, b):
    result = 0
    while b:
        if b & 1:
            result ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11D
        b >>= 1
    return result


# TIMES[c] multiplies bytes by c, as a table for bytes.translate.
TIMES = [bytes(_times(a, c) for a in range(256)) for c in range(256)]
INVERSE = [0] + [TIMES[c].index(1) for c in range(1, 256)]


def add(a, b):
    """The sum of bytes; the shorter ones are padded with zeros."""
    length = max(len(a), len(b))
    total = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
    return total.to_bytes(length, "little")


def add_scaled(a, factor, b):
    return add(a, b.translate(TIMES[factor])) if factor else a
