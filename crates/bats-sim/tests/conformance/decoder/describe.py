"""Prints the fields of each packet of a simulation with the stand-in for TLS (docs/spec/simulation.md)."""

import packets
from wire import Malformed, Reader, datagrams


def hexadecimal(data):
    return data.hex() or "-"


def run(paths):
    for path in paths:
        for _, _, payload in datagrams(path):
            words = []
            describe_datagram(payload, words)
            print(" ".join(map(str, words)))


def describe_datagram(data, words):
    if data and data[0] & 0x80:
        describe_long(data, words)
    else:
        describe_short(data, words)


def describe_long(data, words):
    names = {packets.INITIAL: "initial", packets.HANDSHAKE: "handshake", packets.EARLY: "early"}
    while data:
        try:
            header = packets.LongHeader(data)
        except Malformed:
            return
        if header.version == 0:
            name = "negotiation"
        elif header.version != packets.VERSION:
            name = "unknown-version"
        else:
            name = names.get(header.kind, "retry")
        words += [name, *map(hexadecimal, (header.destination, header.source, header.token))]
        if header.number_at is None:
            return
        at = header.number_at
        number = int.from_bytes(data[at : at + 4], "big")
        words += [number, header.end - at - 4 - packets.TAG]
        data = data[header.end :]


def describe_short(data, words):
    try:
        header = packets.ShortHeader(data)
    except Malformed:
        words.append("invalid")
        return
    payload = data[packets.SHORT_HEADER : -packets.TAG]
    words += ["short", header.destination.hex(), header.number, header.phase]
    if not header.relayed:
        if header.kind == packets.CONTROL:
            describe_frames(payload, words)
        else:
            describe_coded(header.kind, payload, False, words)
        return
    reader = Reader(payload)
    try:
        flow = packets.FlowHeader(reader)
    except Malformed:
        words.append("malformed")
        return
    words += ["relayed", flow.destination, flow.source, flow.flow, flow.hop_limit]
    if header.kind == packets.CONTROL:
        describe_datagram(reader.rest(), words)
    else:
        describe_coded(header.kind, reader.rest(), True, words)


def describe_coded(kind, payload, relayed, words):
    reader = Reader(payload)
    try:
        header = packets.CodingHeader(kind, reader)
    except Malformed:
        words.append("malformed")
        header = None
    if header is None:
        pass
    elif header.name == "source":
        words += ["source", header.bid * 16 + header.column]
        describe_symbol(reader.rest(), relayed, words)
        return
    elif header.name == "repair":
        words += ["repair", header.bid, header.column, header.first, header.count]
    elif header.name == "recoded-source":
        words += ["recoded-source", header.bid, header.vector.hex()]
    else:
        words += ["recoded-repair", header.bid, header.first, header.count, header.vector.hex()]
    if header is not None:
        words.append(reader.remaining())
    if kind == packets.REPAIR and not relayed:
        try:
            block = packets.BlockHeader(Reader(payload))
        except Malformed:
            words.append("no-block")
            return
        sizes = [block.source_packets, block.packet_size]
        words += ["block", block.sequence, block.block, *sizes, block.bid]


def describe_symbol(symbol, sealed, words):
    if sealed:
        length = int.from_bytes(symbol[:2], "big")
        words += ["sealed", length]
        symbol = symbol[2 : 2 + length]
    try:
        for name, *fields in packets.message_frames(symbol):
            words.append(name)
            words += [len(field) if isinstance(field, bytes) else field for field in fields]
    except Malformed:
        words.append("malformed")


def describe_frames(payload, words):
    try:
        for name, *fields in packets.control_frames(payload):
            words.append(name)
            if name == "ack":
                words += fields[:4] + [f"{first}-{last}" for first, last in fields[4]]
            elif name == "rank":
                fields[2] = "-" if fields[2] is None else fields[2]
                words += fields[:5] + [f"{at}+{span}:{missing}" for at, span, missing in fields[5]]
            elif name in ("crypto", "fragment"):
                words += fields[:-1] + [len(fields[-1])]
            else:
                words += [hexadecimal(f) if isinstance(f, bytes) else f for f in fields]
    except Malformed:
        words.append("malformed")
