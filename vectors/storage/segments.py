#!/usr/bin/env python3
"""Reads the log of a closed store by docs/storage-format.md alone, and prints what it holds.

    python3 segments.py STORE/log

One line for each record that is not deleted: kind, group, seq, id, budget bytes, length, CRC32C of its bytes; sorted. Exit code 1
if anything is not as the page says. Knows nothing of the list of segments, so the log must have no leftovers of a compaction.
"""

import os
import struct
import sys


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class Wrong(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Wrong(what)


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        need(self.at + count <= len(self.data), "cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))


def segment(data):
    """Header, entries {(kind, group, seq): (id, offset, length, budget, crc)}, deletions, commit numbers."""
    head = Cursor(data[:64])
    need(head.take(8) == b"DROVRSEG", "magic of the segment")
    version, kind = head.numbers("II")
    store = head.take(16)
    number, writer, zero, salt, zero2, crc = head.numbers("QIIQII")
    need((version, zero, zero2) == (1, 0, 0) and kind in (1, 2), "header of the segment")
    need(crc == crc32c(data[:60]), "checksum of the header")
    entries, deletions, last, at = {}, [], 0, 64
    while at < len(data) and any(data[at : at + 8]):
        length, lsn, back = commit(data, at, salt, entries, deletions)
        need(lsn > last, "commit numbers rise")
        need(back == 0 if kind == 2 else last == 0 or lsn - back == last, f"what comes before the commit at {at}")
        last, at = lsn, at + length
    need(not any(data[at:]), f"zeros after the last commit at {at}")
    return {"store": store, "number": number, "salt": salt, "end": at, "last": last}, entries, deletions


def commit(data, start, salt, entries, deletions):
    head = Cursor(data[start:])
    need(head.take(4) == b"CMT1", f"commit at {start}")
    crc, total, metadata, runs, deletes, usages, back, lsn, own = head.numbers("IIIIIIIQQ")
    need(own == salt and total % 8 == 0, f"head of the commit at {start}")
    need(crc == crc32c(data[start + 8 : start + 48 + metadata]), f"checksum of the commit at {start}")
    meta, payload = Cursor(head.take(metadata)), start + 48 + metadata
    for _ in range(runs):
        kind, count = meta.numbers("II")
        group = meta.take(32)
        (first,) = meta.numbers("Q")
        records = [meta.numbers("IIIII") for _ in range(count)]
        for delta, length, budget, record_crc, id_at in records:
            record = data[payload : payload + length]
            need(len(record) == length and crc32c(record) == record_crc, f"record at {payload}")
            address = meta.take(32) if id_at == 0xFFFFFFFF else record[id_at : id_at + 32]
            key = (kind, group, first + delta)
            need(key not in entries, "a number is used once")
            entries[key] = (address, payload, length, budget, record_crc)
            payload += length
    for _ in range(deletes):
        kind, count = meta.numbers("II")
        group = meta.take(32)
        deletions += [(kind, group, *meta.numbers("QQ")) for _ in range(count)]
    for _ in range(usages):
        length, _held = meta.numbers("IQ")
        meta.take(length).decode("utf-8")
    need(meta.at == metadata, f"metadata of the commit at {start}")
    end = Cursor(data[payload : start + total])
    need(not any(end.take(-payload % 8)), f"padding at {payload}")
    need(end.take(4) == b"END1" and end.numbers("IQ") == (crc, lsn), f"commit record of {start}")
    need(end.at == len(end.data), f"length of the commit at {start}")
    return total, lsn, back


def index(data, of, entries, deletions):
    """Checks an index against its segment."""
    head = Cursor(data[:128])
    need(head.take(8) == b"DROVRIDX", "magic of the index")
    version, rows = head.numbers("II")
    need(version == 1 and head.take(16) == of["store"], "header of the index")
    found = head.numbers("QQQQQQQQII")
    number, salt, length, last, count, record_bytes, rows_at, file_length, deletion_rows, fences_crc = found
    need((number, salt, length, last) == (of["number"], of["salt"], of["end"], of["last"]), "the index's segment")
    need(count == len(entries) and record_bytes == sum(e[2] for e in entries.values()), "totals of the index")
    need(not any(head.take(20)) and head.numbers("I")[0] == crc32c(data[:124]), "checksum of the index's header")
    need(file_length == len(data), "length of the index")
    pages = -(-rows // 63)
    fences = data[rows_at + pages * 4096 :]
    need(len(fences) == pages * 8 and crc32c(fences) == fences_crc, "fences")
    seen, ranges, order = {}, [], []
    for page in range(pages):
        bytes_ = data[rows_at + page * 4096 : rows_at + (page + 1) * 4096]
        row_count, crc = struct.unpack("<II", bytes_[4088:])
        need(crc == crc32c(bytes_[:4092]), "checksum of a page")
        need(bytes_[:8] == fences[page * 8 : page * 8 + 8][::-1], "fence")
        for row in range(row_count):
            cursor = Cursor(bytes_[row * 64 : row * 64 + 64])
            group = cursor.take(32)
            kind, items, first, last, offset = cursor.numbers("IIQQQ")
            deletion, kind = kind >> 8, kind & 255
            order.append((group, kind, deletion, first))
            size, full = (16, 128) if deletion else (52, 64)
            blocks, numbers = Cursor(data[offset:rows_at]), []
            for begin in range(0, items, full):
                block = blocks.take(size * min(full, items - begin))
                need(blocks.numbers("I")[0] == crc32c(block), "checksum of a block")
                for at in range(0, len(block), size):
                    item = Cursor(block[at : at + size])
                    if deletion:
                        numbers += item.numbers("QQ")
                        ranges.append((kind, group, *numbers[-2:]))
                    else:
                        address = item.take(32)
                        delta, place, length, budget, record_crc = item.numbers("IIIII")
                        numbers.append(first + delta)
                        seen[(kind, group, first + delta)] = (address, place, length, budget, record_crc)
            need((first, last) == (numbers[0], numbers[-1]) and numbers == sorted(numbers), "range of a row")
    need(order == sorted(order) and len(order) == rows, "order of rows")
    need(sum(o[2] for o in order) == deletion_rows, "rows of deletions")
    need(seen == entries, "entries of the index")

    def numbers_of(deleted):
        return {(k, g, n) for k, g, a, b in deleted for n in range(a, b + 1)}

    need(numbers_of(ranges) == numbers_of(deletions), "deletions of the index")


def main(folder):
    records, deleted = {}, []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".seg"))
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                of, entries, deletions = segment(file.read())
            need(of["number"] == int(name[:16], 16), "the number in the name")
            path = path[:-3] + "idx"
            if os.path.exists(path):
                with open(path, "rb") as file:
                    index(file.read(), of, entries, deletions)
        except Wrong as wrong:
            print(f"{path}: {wrong}", file=sys.stderr)
            return 1
        records.update(entries)
        deleted += deletions
    for kind, group, first, last in deleted:
        for key in [k for k in records if k[:2] == (kind, group) and first <= k[2] <= last]:
            del records[key]
    for (kind, group, seq), (address, _, length, budget, crc) in sorted(records.items()):
        print(kind, group.hex(), seq, address.hex(), budget, length, f"{crc:08x}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
