"""Decodes captures of OpenBATS. It is written from docs/spec alone.

    main.py messages --keys FILE CAPTURE...    messages and channels of all connections, with a key log
    main.py packets CAPTURE...                 the fields of all packets, for the stand-in of TLS
"""

import argparse
import hashlib

import describe
import packets
from connection import Connection
from keys import KeyLog
from wire import Malformed, Reader, datagrams, require


class Decoder:
    """All connections of a capture, by scope: None for links, or nodes and flow of a session."""

    def __init__(self, log):
        self.log = log
        self.scopes = {}

    def datagram(self, data, scope, source_node=None):
        if data and data[0] & 0x80:
            self.long(data, scope, source_node)
        else:
            self.short(data, scope)

    def long(self, data, scope, source_node):
        connections = self.scopes.setdefault(scope, [])
        datagram = data
        while data:
            try:
                header = packets.LongHeader(data)
            except Malformed:
                return
            if header.number_at is None:
                return
            is_first = header.kind == packets.INITIAL and len(header.destination) == 8
            require(not is_first or len(datagram) >= 1200, "H3")
            if not any(connection.open_long(data, header) for connection in connections):
                if is_first:
                    name = "link" if scope is None else "session"
                    name = f"{name}-{header.destination.hex()}"
                    connection = Connection(name, self.log, header, source_node)
                    if connection.open_long(data, header):
                        connections.append(connection)
            data = data[header.end :]

    def short(self, data, scope):
        for connection in self.scopes.get(scope, []):
            opened = connection.open_short(data)
            if opened:
                header, payload, sender = opened
                self.payload(connection, sender, (header.kind, header.relayed), payload)
                return

    def payload(self, connection, sender, kind, payload):
        if kind == (packets.CONTROL, False):
            for whole_kind, relayed, whole in connection.control(sender, payload):
                self.payload(connection, sender, (whole_kind, relayed), whole)
        elif not kind[1]:
            connection.coded(sender, kind[0], payload)
        else:
            self.relayed(kind[0], payload)

    def relayed(self, kind, payload):
        reader = Reader(payload)
        flow = packets.FlowHeader(reader)
        scope = (frozenset((flow.source, flow.destination)), flow.flow)
        if kind == packets.CONTROL:
            self.datagram(reader.rest(), scope, flow.source)
            return
        payload = reader.rest()
        for connection in self.scopes.get(scope, []):
            sender = "client" if flow.source == connection.client_node else "server"
            connection.coded(sender, kind, payload)


def print_messages(keys, expected, captures):
    decoder = Decoder(KeyLog(keys))
    for path in captures:
        for _, _, payload in datagrams(path):
            decoder.datagram(payload, None)
    found = {"two-links"} if len(decoder.scopes.get(None, [])) > 1 else set()
    for connections in decoder.scopes.values():
        for connection in connections:
            found |= connection.features()
            for sender, number, message in connection.messages():
                digest = hashlib.sha256(message).hexdigest()
                print("message", connection.name, sender, number, len(message), digest)
            for sender, number, content in connection.channels():
                digest = hashlib.sha256(content).hexdigest()
                print("channel", connection.name, sender, number, len(content), digest)
    missing = set(expected) - found
    if missing:
        raise SystemExit(f"does not occur in the capture: {sorted(missing)}, only {sorted(found)}")


def main():
    parser = argparse.ArgumentParser(description="Decodes captures of OpenBATS.")
    commands = parser.add_subparsers(dest="command", required=True)
    messages = commands.add_parser("messages", help="print the messages and channels of all connections")
    messages.add_argument("--keys", required=True, help="key log (SSLKEYLOGFILE)")
    what = "a feature that must occur: source, repair, recoded, block, key-update, psk, two-links"
    messages.add_argument("--expect", action="append", default=[], help=what)
    fields = commands.add_parser("packets", help="print the fields of packets without encryption")
    for command in (messages, fields):
        command.add_argument("captures", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "messages":
        print_messages(arguments.keys, arguments.expect, arguments.captures)
    else:
        describe.run(arguments.captures)


if __name__ == "__main__":
    main()
