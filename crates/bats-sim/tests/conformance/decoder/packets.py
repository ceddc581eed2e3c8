"""Packets, headers and frames (docs/spec/packets.md, handshake.md, coding.md, messages.md)."""

from wire import Malformed, Reader

VERSION = 0xBA750005
TAG = 16
SHORT_HEADER = 9
CONTROL, SOURCE, REPAIR, RECODED = range(4)
INITIAL, HANDSHAKE, RETRY, EARLY = range(4)


class LongHeader:
    """The fields of a packet with a long header; `number_at` is None if the rest is opaque."""

    def __init__(self, data):
        reader = Reader(data)
        first = reader.uint(1)
        if not first & 0x80:
            raise Malformed("a short header")
        self.version = reader.uint(4)
        self.kind = first >> 4 & 3
        self.destination, self.source = self.connection_id(reader), self.connection_id(reader)
        self.number_at = None
        if self.version != VERSION or self.kind == RETRY:
            self.token = reader.rest()
            return
        self.token = reader.take(reader.uint(2)) if self.kind == INITIAL else b""
        length = reader.uint(2)
        if length < 4 + TAG or length > reader.remaining():
            raise Malformed("length")
        self.number_at = reader.at
        self.end = reader.at + length

    @staticmethod
    def connection_id(reader):
        length = reader.uint(1)
        if length > 20:
            raise Malformed("connection ID")
        return reader.take(length)


class ShortHeader:
    """A hop header whose mask was removed."""

    def __init__(self, data):
        if len(data) < SHORT_HEADER + TAG or data[0] & 0x80 or data[0] & 0x10:
            raise Malformed("hop header")
        self.relayed = bool(data[0] & 0x08)
        self.kind = data[0] >> 1 & 3
        self.phase = data[0] & 1
        self.destination = data[1:5]
        self.number = int.from_bytes(data[5:9], "big")


class FlowHeader:
    def __init__(self, reader):
        self.destination, self.source, self.flow = (reader.uint(4) for _ in range(3))
        self.hop_limit = reader.uint(1)


class CodingHeader:
    """A coding header; `name` says which."""

    def __init__(self, kind, reader):
        self.bid = reader.uint(3)
        self.column = reader.uint(1)
        self.first = self.count = self.vector = None
        if kind == SOURCE or kind == REPAIR:
            if self.column > 15:
                raise Malformed("column")
            self.name = "source" if kind == SOURCE else "repair"
        elif kind == RECODED and self.column < 2:
            self.name = "recoded-source" if self.column else "recoded-repair"
        else:
            raise Malformed("kind")
        if self.name in ("repair", "recoded-repair"):
            self.first, self.count = reader.uint(4), reader.uint(2)
        if kind == RECODED:
            self.vector = reader.take(16)


class BlockHeader:
    def __init__(self, reader):
        self.sequence, self.block = reader.uint(4), reader.uint(4)
        self.source_packets, self.packet_size = reader.uint(2), reader.uint(2)
        self.bid = reader.uint(3)
        if self.source_packets == 0 or self.packet_size == 0:
            raise Malformed("block")


def handshake_frames(data):
    """Frames of Initial and Handshake packets as tuples; stops at an unknown one."""
    reader = Reader(data)
    try:
        while reader.remaining():
            kind = reader.uint(1)
            if kind == 0:
                continue
            if kind == 1:
                yield "crypto", reader.varint(), reader.take(reader.varint())
            elif kind in (2, 3):
                reader.varint()
            elif kind == 4:
                reader.varint(), reader.varint()
            elif kind == 5:
                yield "close", reader.take(reader.varint())
            elif kind == 6:
                reader.take(4)
            else:
                return
    except Malformed:
        return


def control_frames(data):
    """Frames of a control packet as tuples of a name and fields."""
    reader = Reader(data)
    v = reader.varint
    while reader.remaining():
        kind = reader.uint(1)
        if kind == 0x00:
            continue
        if kind == 0x01:
            yield ("ping",)
        elif kind == 0x02:
            yield acknowledgement(v)
        elif kind == 0x03:
            yield rank(v)
        elif kind == 0x04:
            yield "credit", v()
        elif kind == 0x05:
            yield ("handshake-done",)
        elif kind == 0x06:
            offset, length = v(), v()
            yield "crypto", offset, reader.take(length)
        elif kind == 0x07:
            application, code, length = v(), v(), v()
            if length > 256:
                raise Malformed("text")
            text = reader.take(length)
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Malformed("text") from error
            yield "close", int(application == 1), code, text
        elif kind == 0x08:
            packet, part, whole, last = v(), v(), v(), v()
            if not 1 <= whole <= 7:
                raise Malformed("fragment")
            yield "fragment", packet, part, whole & 3, whole >> 2, int(last == 1), reader.rest()
        elif kind == 0x09:
            yield "end", v(), v()
        elif kind in (0x0A, 0x0B):
            yield "path-challenge" if kind == 0x0A else "path-response", reader.take(8)
        elif kind == 0x10:
            yield batch_rank(reader)
        elif kind == 0x11:
            yield "symbol-polluted", v()
        else:
            raise Malformed("frame type")


def acknowledgement(v):
    largest, delay, arrival, ce, further, length = (v() for _ in range(6))
    if further >= 1024 or length > largest or arrival * 1000 > 1 << 62:
        raise Malformed("acknowledgement")
    ranges = [(largest - length, largest)]
    for _ in range(further):
        last = ranges[-1][0] - v() - 2
        first = last - v()
        if first < 0:
            raise Malformed("acknowledgement")
        ranges.append((first, last))
    return "ack", largest, delay, arrival, ce, ranges


def rank(v):
    below, seen, repair, coded, wasted, count = (v() for _ in range(6))
    if count > 255 or wasted > coded:
        raise Malformed("rank")
    entries, at = [], below
    for _ in range(count):
        at += v()
        span, missing = v(), v()
        if span == 0 or missing == 0:
            raise Malformed("rank")
        entries.append((at, span, missing))
    return "rank", below, below + seen, repair - 1 if repair else None, coded, wasted, entries


def batch_rank(reader):
    key = tuple(reader.uint(4) for _ in range(3))
    space = reader.uint(1)
    mark, room, first, count = (reader.varint() for _ in range(4))
    if space > 1 or first >> 24 or count > 4096:
        raise Malformed("batch ranks")
    ranks = bytearray()
    while len(ranks) < count:
        byte = reader.uint(1)
        if byte < 16:
            ranks.append(byte)
        elif byte >= 128:
            ranks.extend([16] * (byte - 127))
        elif byte < 116:
            ranks.extend(16 - missing for missing in divmod(byte - 16, 10))
        else:
            raise Malformed("batch ranks")
    if len(ranks) > count:
        raise Malformed("batch ranks")
    return "batch-rank", *key, space, mark, room, first, bytes(ranks)


def message_frames(data):
    """Frames of a symbol as tuples of a name and fields."""
    reader = Reader(data)
    v = reader.varint
    while reader.remaining():
        kind = reader.uint(1)
        if kind == 0:
            continue
        if kind == 1:
            yield "message", v(), reader.take(v())
        elif kind == 2:
            yield "continuation", reader.take(v())
        elif kind == 3:
            yield ("fin",)
        elif kind == 4:
            yield "datagram", v(), v(), v(), reader.take(v())
        elif kind in (5, 6):
            yield "channel" if kind == 5 else "channel-end", v(), v(), reader.take(v())
        elif kind == 7:
            yield "channel-reset", v(), v(), v()
        elif kind == 8:
            yield "channel-stop", v(), v()
        elif kind == 9:
            yield "channel-credit", v(), v()
        elif kind == 10:
            yield "session-credit", v()
        elif kind == 11:
            yield "channels", v()
        else:
            raise Malformed("message frame")
