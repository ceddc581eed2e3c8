"""Reading of integers and bytes, and of captures (docs/spec/README.md)."""

import struct


class Malformed(Exception):
    """The input is truncated or breaks a rule."""


class Violation(Exception):
    """A sender breaks a requirement of the specification."""


def require(condition, requirement):
    """Fails if a sender breaks this requirement (docs/spec/requirements.md)."""
    if not condition:
        raise Violation(requirement)


class Reader:
    """Reads from the front of bytes."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def remaining(self):
        return len(self.data) - self.at

    def take(self, length):
        end = self.at + length
        if end > len(self.data):
            raise Malformed("truncated")
        part = self.data[self.at : end]
        self.at = end
        return part

    def rest(self):
        return self.take(self.remaining())

    def uint(self, length):
        return int.from_bytes(self.take(length), "big")

    def varint(self):
        if self.at >= len(self.data):
            raise Malformed("truncated")
        first = self.data[self.at]
        length = 1 << (first >> 6)
        return int.from_bytes(self.take(length), "big") & ((1 << (8 * length - 2)) - 1)


def nearest(truncated, bits, expected):
    """The non-negative number nearest to `expected` with these low bits."""
    size = 1 << bits
    candidate = (expected & ~(size - 1)) | truncated
    candidates = [candidate + size, candidate, candidate - size]
    return min((c for c in candidates if c >= 0), key=lambda c: abs(c - expected))


def datagrams(path):
    """(source, destination, UDP payload) of the datagrams of a pcapng or pcap file."""
    with open(path, "rb") as file:
        data = file.read()
    frames = pcapng_frames(data) if data[:4] == b"\x0a\x0d\x0d\x0a" else pcap_frames(data)
    for frame in frames:
        # Ethernet, IPv4 without options, UDP.
        if frame[12:14] != b"\x08\x00" or frame[14] != 0x45 or frame[23] != 17:
            continue
        ports = struct.unpack(">HHH", frame[34:40])
        source, destination = (frame[26:30], ports[0]), (frame[30:34], ports[1])
        yield source, destination, frame[42 : 34 + ports[2]]


def pcapng_frames(data):
    at, order = 0, "<"
    while at + 12 <= len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
        kind, length = struct.unpack(order + "II", data[at : at + 8])
        if kind == 6:
            captured = struct.unpack(order + "I", data[at + 20 : at + 24])[0]
            yield data[at + 28 : at + 28 + captured]
        at += length


def pcap_frames(data):
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at + 16 <= len(data):
        captured = struct.unpack(order + "I", data[at + 8 : at + 12])[0]
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured
