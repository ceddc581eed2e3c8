"""Connections: handshake, keys and the packets of both ends (docs/spec/handshake.md, parameters.md)."""

import packets
from flow import Flow
from keys import Keys, Seals, initial_keys, unmask
from wire import Malformed, Reader, nearest, require

ALPN, PARAMETERS = 0x10, 0x39
SENDERS = ("client", "server")


class Stream:
    """TLS data of one end at one level, assembled by offset."""

    def __init__(self):
        self.data = bytearray()
        self.present = bytearray()

    def add(self, offset, part):
        end = offset + len(part)
        if end > 1 << 17:
            return
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
            self.present.extend(bytes(end - len(self.present)))
        self.data[offset:end] = part
        self.present[offset:end] = b"\1" * len(part)

    def messages(self):
        """Complete TLS messages: (type, content)."""
        arrived = (self.present + b"\0").index(0)
        at = 0
        while at + 4 <= arrived:
            end = at + 4 + int.from_bytes(self.data[at + 1 : at + 4], "big")
            if end > arrived:
                return
            yield self.data[at], bytes(self.data[at + 4 : end])
            at = end


def transport_parameters(extensions):
    """The parameters in the extensions of a ClientHello or EncryptedExtensions."""
    found, reader = None, Reader(extensions)
    while reader.remaining():
        kind = reader.uint(2)
        content = reader.take(reader.uint(2))
        if kind == ALPN:
            require(content == b"\0\x0b\x0aopenbats/1", "H1")
        if kind == PARAMETERS:
            found, inner = {}, Reader(content)
            while inner.remaining():
                identifier = inner.varint()
                found[identifier] = inner.take(inner.varint())
    return found


class Connection:
    """One connection: a link, or an end-to-end session with the node of its client."""

    def __init__(self, name, log, first, client_node=None):
        self.name, self.log, self.client_node = name, log, client_node
        self.original = first.destination
        self.ids = {"client": first.source, "server": None}
        self.levels = {"client": {}, "server": {}}
        self.streams = {(sender, level): Stream() for sender in SENDERS for level in (0, 1)}
        self.random = self.suite = self.mode = None
        self.seeds, self.limits = {}, {}
        self.is_link = client_node is None
        self.data_keys = {}
        self.largest = {sender: -1 for sender in SENDERS}
        self.seen = {sender: set() for sender in SENDERS}
        self.phases = {sender: 0 for sender in SENDERS}
        self.fragments = {}
        self.flows = {}
        self.waiting = []
        for sender, label, identifier in (
            ("client", "OPENBATS_CLIENT_INITIAL", self.original),
            ("server", "OPENBATS_SERVER_INITIAL", None),
        ):
            material = log.get(label, identifier) if identifier else None
            is_psk = log.get("OPENBATS_CLIENT_INITIAL", self.original) is not None
            if material is None and not is_psk:
                material = self.original
            if material is not None:
                self.levels[sender][0] = initial_keys(material, sender.encode() + b" in")

    def sender_of(self, destination):
        """Which end sends packets to this connection ID, if any does."""
        if destination == self.original or destination == self.ids["server"]:
            return "client"
        return "server" if destination == self.ids["client"] else None

    def open_long(self, packet, header):
        """Takes a packet with a long header; whether it is authentic."""
        sender = self.sender_of(header.destination)
        if sender is None or header.kind not in (packets.INITIAL, packets.HANDSHAKE):
            return False
        if sender == "server" and header.kind == packets.INITIAL and 0 not in self.levels[sender]:
            material = self.log.get("OPENBATS_SERVER_INITIAL", header.token)
            if material is not None:
                self.levels[sender][0] = initial_keys(material, b"server in")
        keys = self.levels[sender].get(header.kind)
        if keys is None:
            return False
        packet = unmask(keys, packet[: header.end], header.number_at, 0x0F)
        at = header.number_at + 4
        number = int.from_bytes(packet[at - 4 : at], "big")
        payload = keys.open(number, packet[:at], packet[at:])
        if payload is None:
            return False
        if sender == "server" and self.ids["server"] is None:
            self.ids["server"] = header.source
        for name, *fields in packets.handshake_frames(payload):
            if name == "crypto":
                self.streams[sender, header.kind].add(*fields)
        self.advance()
        return True

    def advance(self):
        """Reads the TLS messages that have arrived, and derives the keys that follow from them."""
        for kind, content in self.streams["client", 0].messages():
            if kind == 1 and self.random is None:
                self.random = content[2:34]
                reader = Reader(content[34:])
                reader.take(reader.uint(1)), reader.take(reader.uint(2)), reader.take(reader.uint(1))
                self.parameters("client", transport_parameters(reader.take(reader.uint(2))))
        for kind, content in self.streams["server", 0].messages():
            if kind == 2 and self.suite is None:
                at = 35 + content[34]
                self.suite = int.from_bytes(content[at : at + 2], "big")
        if self.random and self.suite and not self.data_keys:
            for sender in SENDERS:
                upper = sender.upper()
                label = f"{upper}_HANDSHAKE_TRAFFIC_SECRET"
                self.levels[sender][1] = Keys(self.suite, self.log.get(label, self.random))
                label = f"{upper}_TRAFFIC_SECRET_0"
                self.data_keys[sender] = Keys(self.suite, self.log.get(label, self.random))
        for kind, content in self.streams["server", 1].messages():
            if kind == 8 and "server" not in self.seeds:
                self.parameters("server", transport_parameters(content[2:]))
        if len(self.seeds) == 2 and not self.flows:
            seals = None
            if self.client_node is not None:
                seals = Seals(self.suite, self.log.get("EXPORTER_SECRET", self.random))
            for sender in SENDERS:
                receiver = "server" if sender == "client" else "client"
                limits = self.limits[receiver]
                self.flows[sender] = Flow(self.mode, self.seeds[sender], sender, seals, limits)
            for sender, kind, payload in self.waiting:
                self.coded(sender, kind, payload)

    def parameters(self, sender, found):
        if sender == "client":
            self.mode = int.from_bytes(found.get(1, b"\1"), "big")
        else:
            self.ids["server"] = found.get(9, bytes(4))
            require(found.get(10) == self.original, "T3")
        self.limits[sender] = {3: 1408, 6: 256, 8: 1472}
        for identifier in self.limits[sender]:
            if identifier in found:
                self.limits[sender][identifier] = int.from_bytes(found[identifier], "big")
        self.seeds[sender] = int.from_bytes(found.get(7, b""), "big")

    def open_short(self, packet):
        """The header and payload of a new packet with a short header and its sender, if authentic."""
        sender = self.sender_of(packet[1:5])
        keys = self.data_keys.get(sender)
        if keys is None or len(packet) < packets.SHORT_HEADER + packets.TAG:
            return None
        packet = unmask(keys, packet, 5, 0x1F)
        try:
            header = packets.ShortHeader(packet)
        except Malformed:
            return None
        number = nearest(header.number, 32, self.largest[sender] + 1)
        at = packets.SHORT_HEADER
        phase = self.phases[sender]
        # The current phase or a neighbour of it, as the phase bit says.
        candidates = [p for p in (phase, phase - 1, phase + 1) if p >= 0 and p & 1 == header.phase]
        for candidate in candidates:
            payload = keys.open(number, packet[:at], packet[at:], candidate)
            if payload is not None:
                self.phases[sender] = max(phase, candidate)
                is_new = number not in self.seen[sender]
                # A capture at one host has each packet once.
                require(is_new or not self.is_link, "P3")
                receiver = "server" if sender == "client" else "client"
                limit = self.limits.get(receiver, {}).get(8, 1 << 16)
                require(len(packet) <= limit, "T4")
                self.seen[sender].add(number)
                self.largest[sender] = max(self.largest[sender], number)
                return (header, payload, sender) if is_new else None
        return None

    def coded(self, sender, kind, payload):
        """Takes a coded packet of the connection's flow."""
        if self.flows:
            self.flows[sender].push(kind, payload)
        else:
            self.waiting.append((sender, kind, payload))

    def control(self, sender, payload):
        """Takes control frames; returns the payloads (kind, relayed, payload) of fragments."""
        whole = []
        for name, *fields in packets.control_frames(payload):
            if name == "fragment":
                packet, part, kind, relayed, last, data = fields
                parts = self.fragments.setdefault((sender, packet), {})
                parts[part] = (data, last)
                ends = [at for at, (_, is_last) in parts.items() if is_last]
                if ends and len(parts) == ends[0] + 1:
                    data = b"".join(parts[at][0] for at in range(len(parts)))
                    whole.append((kind, bool(relayed), data))
        return whole

    def features(self):
        """What occurred on the connection."""
        found = {kind.split("-")[0] for flow in self.flows.values() for kind in flow.decoder.kinds}
        if max(self.phases.values()) > 0:
            found.add("key-update")
        if self.log.get("OPENBATS_CLIENT_INITIAL", self.original):
            found.add("psk")
        return found

    def channels(self):
        """All channels that have ended: (sender, number, bytes)."""
        for sender, flow in self.flows.items():
            for number in sorted(flow.ended):
                yield sender, number, bytes(flow.channels.get(number, b""))

    def messages(self):
        """All messages: (sender, number, message)."""
        for sender, flow in self.flows.items():
            for number, message in flow.messages():
                yield sender, number, message
