"""Decoding of blocks, mode 2 (docs/spec/blocks.md)."""

from functools import lru_cache

import packets
from field import INVERSE, TIMES, add_scaled
from wire import Malformed, Reader, nearest, require

BATCH = 16
WORD = 0xFFFFFFFF


class TinyMt32:
    """RFC 8682."""

    def __init__(self, seed):
        state = [seed, 0x8F7011EE, 0xFC78FF1F, 0x3793FDFF]
        for i in range(1, 8):
            before = state[i - 1 & 3]
            state[i & 3] ^= i + 1812433253 * (before ^ before >> 30) & WORD
        self.state = state
        for _ in range(8):
            self.step()

    def step(self):
        s0, s1, s2, y = self.state
        x = s0 & 0x7FFFFFFF ^ s1 ^ s2
        x ^= x << 1 & WORD
        y ^= y >> 1 ^ x
        s2, x = x ^ (y << 10 & WORD), s2
        if y & 1:
            x ^= 0x8F7011EE
            s2 ^= 0xFC78FF1F
        self.state = [s1, x, s2, y]

    def draw(self):
        self.step()
        s0, _, s2, s3 = self.state
        t = s0 + (s2 >> 8) & WORD
        return s3 ^ t ^ (0x3793FDFF if t & 1 else 0)


@lru_cache(maxsize=256)
def generator(source_packets, bid):
    """The columns of a batch: K coefficients each, by the number of the source packet."""
    random = TinyMt32(bid)
    indices = {}
    while len(indices) < source_packets:
        indices.setdefault(random.draw() % source_packets)
    columns = [bytearray(source_packets) for _ in range(BATCH)]
    for index in indices:
        for column in columns:
            column[index] = random.draw() & 0xFF
    return [bytes(column) for column in columns]


def without_padding(data):
    value = data[-1]
    run = 0
    while run < value and run < len(data) and data[-1 - run] == value:
        run += 1
    return data[: len(data) - value * (value - 1) // 2 - run]


class Block:
    def __init__(self, source_packets, packet_size):
        self.source_packets, self.packet_size = source_packets, packet_size
        # Coefficients and content by pivot, in echelon form.
        self.rows = {}

    def push(self, bid, coded):
        vector, content = coded[:BATCH], coded[BATCH:]
        row = bytes(self.source_packets)
        for factor, column in zip(vector, generator(self.source_packets, bid)):
            row = add_scaled(row, factor, column)
        row += content
        for pivot in range(self.source_packets):
            factor = row[pivot]
            if factor and pivot in self.rows:
                row = add_scaled(row, factor, self.rows[pivot])
            elif factor:
                self.rows[pivot] = row.translate(TIMES[INVERSE[factor]])
                return

    def data(self):
        """The data, or None if packets are missing."""
        if len(self.rows) < self.source_packets:
            return None
        for pivot in reversed(range(self.source_packets)):
            for other in range(pivot):
                factor = self.rows[other][pivot]
                self.rows[other] = add_scaled(self.rows[other], factor, self.rows[pivot])
        contents = [self.rows[pivot][self.source_packets :] for pivot in range(self.source_packets)]
        return without_padding(b"".join(contents))


class BlockDecoder:
    """Decodes the blocks of a flow."""

    def __init__(self, over_relays):
        self.over_relays = over_relays
        self.open, self.decoded = {}, set()
        self.seen_end = 0
        self.kinds = {"block"}

    def push(self, kind, payload):
        """Takes the payload of a packet; returns (number, data) of a block that it completes."""
        reader = Reader(payload)
        if self.over_relays:
            header = packets.CodingHeader(kind, reader)
            self.kinds.add(header.name)
            if header.name not in ("repair", "recoded-repair"):
                raise Malformed("kind")
            number, count = nearest(header.first, 32, self.seen_end), header.count
            coded = reader.rest()
            size = len(coded) - BATCH
        else:
            header = packets.BlockHeader(reader)
            number, count = nearest(header.block, 32, self.seen_end), header.source_packets
            size, coded = header.packet_size, reader.rest()
        if not 1 <= count <= 512 or size < 1 or len(coded) != BATCH + size:
            raise Malformed("block")
        self.seen_end = max(self.seen_end, number + 1)
        if number in self.decoded:
            return None
        block = self.open.setdefault(number, Block(count, size))
        require((block.source_packets, block.packet_size) == (count, size), "B2")
        block.push(header.bid, coded)
        data = block.data()
        if data is None:
            return None
        self.decoded.add(number)
        del self.open[number]
        return number, data
