"""Key schedule, packet protection and symbol seals (docs/spec/keys.md, psk.md)."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

INITIAL_SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")
GENERATION_BITS = 22
PART_BITS = 12
LAST_PART = 4095
OVERHEAD = 18

# By number of the cipher suite: AEAD, hash, length of the key.
SUITES = {
    0x1301: (AESGCM, hashes.SHA256, 16),
    0x1302: (AESGCM, hashes.SHA384, 32),
    0x1303: (ChaCha20Poly1305, hashes.SHA256, 32),
}


class KeyLog:
    def __init__(self, path):
        self.secrets = {}
        with open(path, encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if len(words) == 3 and not line.startswith("#"):
                    self.secrets[words[0], bytes.fromhex(words[1])] = bytes.fromhex(words[2])

    def get(self, label, identifier):
        return self.secrets.get((label, identifier))


def keyed_hash(algorithm, key, data):
    function = hmac.HMAC(key, algorithm())
    function.update(data)
    return function.finalize()


def digest(algorithm, data):
    function = hashes.Hash(algorithm())
    function.update(data)
    return function.finalize()


def expand_label(algorithm, secret, label, context, length):
    """HKDF-Expand-Label (RFC 8446, section 7.1)."""
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label
    info += bytes([len(context)]) + context
    return HKDFExpand(algorithm(), length, info).derive(secret)


class Keys:
    """Keys of one direction, with those of later phases."""

    def __init__(self, suite, secret):
        self.aead, self.algorithm, self.key_length = SUITES[suite]
        self.phases = []
        self.secret = secret
        key = expand_label(self.algorithm, secret, b"quic hp", b"", self.key_length)
        self.is_chacha = self.aead is ChaCha20Poly1305
        self.header_key = key
        if not self.is_chacha:
            self.ecb = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def mask(self, sample):
        if not self.is_chacha:
            return self.ecb.update(sample)[:5]
        cipher = Cipher(algorithms.ChaCha20(self.header_key, sample), None)
        return cipher.encryptor().update(bytes(5))

    def phase(self, number):
        while len(self.phases) <= number:
            key = expand_label(self.algorithm, self.secret, b"quic key", b"", self.key_length)
            iv = expand_label(self.algorithm, self.secret, b"quic iv", b"", 12)
            self.phases.append((self.aead(key), int.from_bytes(iv, "big")))
            size = self.algorithm.digest_size
            self.secret = expand_label(self.algorithm, self.secret, b"quic ku", b"", size)
        return self.phases[number]

    def open(self, number, header, sealed, phase=0):
        """The payload, or None if it is not authentic."""
        aead, iv = self.phase(phase)
        try:
            return aead.decrypt((iv ^ number).to_bytes(12, "big"), sealed, header)
        except InvalidTag:
            return None


def unmask(keys, packet, number_at, bits):
    """The packet without the mask of its header; the packet number has four bytes."""
    mask = keys.mask(packet[number_at + 4 : number_at + 20])
    number = bytes(a ^ b for a, b in zip(packet[number_at : number_at + 4], mask[1:]))
    first = bytes([packet[0] ^ mask[0] & bits])
    return first + packet[1:number_at] + number + packet[number_at + 4 :]


def initial_keys(material, label):
    secret = keyed_hash(hashes.SHA256, INITIAL_SALT, material)
    return Keys(0x1301, expand_label(hashes.SHA256, secret, label, b"", 32))


class Seals:
    """Opens the symbols of both directions of an end-to-end session."""

    def __init__(self, suite, exporter_secret):
        _, algorithm, _ = SUITES[suite]
        empty = digest(algorithm, b"")
        size = algorithm.digest_size
        secret = expand_label(algorithm, exporter_secret, b"openbats symbols", empty, size)
        both = expand_label(algorithm, secret, b"exporter", empty, 64)
        self.secrets = {"client": both[:32], "server": both[32:]}
        self.keys = {}

    def open(self, sender, number, symbol):
        """The content, or None if it is not authentic."""
        generation = number >> GENERATION_BITS
        if (sender, generation) not in self.keys:
            data = generation.to_bytes(8, "big")
            key = keyed_hash(hashes.SHA256, self.secrets[sender], data)
            self.keys[sender, generation] = AESGCM(key)
        length = int.from_bytes(symbol[:2], "big")
        sealed = symbol[2 : 2 + length + 16].ljust(length + 16, b"\0")
        aead = self.keys[sender, generation]
        try:
            return aead.decrypt(number.to_bytes(12, "big"), sealed, symbol[:2])
        except InvalidTag:
            return None

    def open_block(self, sender, block, data):
        parts = []
        while len(data) > OVERHEAD + 2:
            content = self.open(sender, block << PART_BITS | len(parts), data)
            if content is None:
                return None
            parts.append(content)
            data = data[len(content) + OVERHEAD :]
        last = self.open(sender, block << PART_BITS | LAST_PART, data)
        return b"".join(parts) if last == len(parts).to_bytes(2, "big") else None
