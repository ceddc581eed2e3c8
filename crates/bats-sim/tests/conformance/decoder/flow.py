"""Flows: from coded packets to messages (docs/spec/messages.md, relaying.md)."""

import packets
from blocks import BlockDecoder
from window import SymbolDecoder
from wire import require

BTP, BRTP, BRCTP, TRANSPARENT = range(4)


class Flow:
    """One direction of a session."""

    def __init__(self, mode, seed, sender, seals, limits):
        self.mode, self.sender, self.seals = mode, sender, seals
        if mode == BRCTP:
            self.decoder = BlockDecoder(seals is not None)
        else:
            self.decoder = SymbolDecoder(seed, limits, seals is not None)
        # Symbols or blocks in modes 1 and 2 by number, until those before them have arrived.
        self.early = {}
        self.next = 0
        self.ordered = []
        self.partial = None
        # Messages of modes 0 and 3: length, and parts by offset.
        self.datagrams = {}
        # Bytes of channels by number, and the numbers of those that have ended.
        self.channels = {}
        self.ended = set()

    def push(self, kind, payload):
        if self.mode == BRCTP:
            block = self.decoder.push(kind, payload)
            contents = [block] if block else []
        else:
            numbers = self.decoder.push(kind, payload)
            contents = [(number, self.decoder.symbols[number]) for number in numbers]
        for number, content in contents:
            if self.seals and self.mode == BRCTP:
                content = self.seals.open_block(self.sender, number, content)
            elif self.seals:
                content = self.seals.open(self.sender, number, content)
            if content is None:
                raise AssertionError(f"symbol {number} does not open")
            if self.mode in (BTP, TRANSPARENT):
                self.take_datagrams(content)
            else:
                self.early[number] = content
        while self.next in self.early:
            self.take_ordered(self.early.pop(self.next))
            self.next += 1

    def take_ordered(self, content):
        for name, *fields in packets.message_frames(content):
            if name == "message":
                self.partial = [fields[0], bytearray()]
            if name in ("message", "continuation"):
                self.partial[1] += fields[-1]
                if len(self.partial[1]) == self.partial[0]:
                    self.ordered.append(bytes(self.partial[1]))
                    self.partial = None
            if name in ("channel", "channel-end"):
                number, offset, data = fields
                content = self.channels.setdefault(number, bytearray())
                require(offset == len(content) and number not in self.ended, "N3")
                content += data
            if name in ("channel-end", "channel-reset"):
                require(fields[0] not in self.ended, "N5")
                self.ended.add(fields[0])

    def take_datagrams(self, content):
        for name, *fields in packets.message_frames(content):
            number, length, offset, data = fields
            self.datagrams.setdefault(number, (length, {}))[1][offset] = data

    def messages(self):
        """Complete messages with their numbers."""
        yield from enumerate(self.ordered)
        for number, (length, parts) in sorted(self.datagrams.items()):
            message = b"".join(data for _, data in sorted(parts.items()))
            if len(message) == length:
                yield number, message
