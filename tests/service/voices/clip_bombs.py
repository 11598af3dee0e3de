"""Malicious clips: false lengths, endless tags, and files that refer to other files."""

from __future__ import annotations

import io
import struct
import zipfile

from tests.service.voices import clips

MIB = 1 << 20
TONE = clips.tone()


def ogg_crc(page: bytes) -> int:
    """Compute the checksum of RFC 3533: polynomial 0x04c11db7, initial value 0, not reflected."""
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return crc


def ogg_pages(data: bytes) -> list[bytes]:
    pages, at = [], 0
    while at < len(data):
        count = data[at + 26]
        end = at + 27 + count + sum(data[at + 27 : at + 27 + count])
        pages.append(data[at:end])
        at = end
    return pages


def resealed(page: bytes, *, granule: int | None = None, serial: int, flags_off: int = 0) -> bytes:
    """Change a page's granule position and serial number, and correct its checksum."""
    changed = bytearray(page)
    if granule is not None:
        changed[6:14] = struct.pack("<Q", granule)
    changed[5] &= ~flags_off
    changed[14:18] = struct.pack("<I", serial)
    changed[22:26] = bytes(4)
    changed[22:26] = struct.pack("<I", ogg_crc(bytes(changed)))
    return bytes(changed)


def endless_ogg(kind: str = "ogg_opus") -> dict[str, bytes]:
    """Make streams that claim to be endless: huge positions, no last page, long chains."""
    opus = clips.encoded(kind, TONE) if kind == "ogg_opus" else clips.vorbis(TONE)
    pages = ogg_pages(opus)
    far = [2**63 - 1, 2**64 - 1, 2**62]
    heads, body = pages[:2], pages[2:]
    positions = {
        f"granule {granule:#x}": b"".join(
            [resealed(page, serial=1) for page in heads]
            + [resealed(page, granule=granule, serial=1, flags_off=4) for page in body]
        )
        for granule in far
    }
    links = [
        b"".join(resealed(page, serial=serial, flags_off=4) for page in pages)
        for serial in range(1, 41)
    ]
    begins = resealed(pages[0], serial=7)
    return positions | {
        "a chain of 40": b"".join(links),
        "thousands of beginnings": begins * (4 * MIB // len(begins)),
        "empty pages": opus + (resealed(body[0][:26] + b"\0", serial=1) * (4 * MIB // 27)),
    }


def tagged_mp3() -> dict[str, bytes]:
    mp3 = clips.encoded("mp3", TONE)
    picture = b"\0image/png\0\x03\0" + bytes(8 * MIB)
    size = bytes(len(picture) >> shift & 0x7F for shift in (21, 14, 7, 0))
    apic = b"APIC" + size + b"\0\0" + picture
    frames = b"".join(b"TXXX\0\0\0\x05\0\0\0" + b"a\0" + b"bb" for _ in range(200_000))
    return {
        "8 MiB of nothing": clips.id3(8 * MIB, bytes(8 * MIB)) + mp3,
        "8 MiB of picture": clips.id3(len(apic), apic) + mp3,
        "200,000 frames": clips.id3(len(frames), frames) + mp3,
        "tag over tag": clips.id3(0, b"") * 100_000 + mp3,
    }


def lying_mp3() -> dict[str, bytes]:
    mp3 = clips.encoded("mp3", TONE)
    return {
        "256 MiB that are not there": clips.id3(2**28 - 1, mp3),
        "a zip in a tag's clothes": clips.id3(0, zipped()),
        "a playlist in a tag's clothes": clips.id3(0, PLAYLISTS["m3u8"] * 100),
        "sync words alone": b"\xff\xfb\x90\0" * (4 * MIB // 4),
    }


def chunk(name: bytes, size: int, held: bytes = b"") -> bytes:
    return name + struct.pack("<I", size) + held


def wav_of(*chunks: bytes, form: bytes = b"RIFF") -> bytes:
    return form + b"\xff\xff\xff\xffWAVE" + b"".join(chunks)


def lying_wav() -> dict[str, bytes]:
    plain = clips.wav(TONE)
    form, data = plain[12:36], plain[36:]
    most = 2**32 - 1
    ds64 = struct.pack("<QQQI", 2**63, 2**63, 2**62, 0)
    return {
        "4 GiB of LIST first": wav_of(form, chunk(b"LIST", most, b"INFO"), data),
        "4 GiB of JUNK first": wav_of(chunk(b"JUNK", most), form, data),
        "a form of 4 GiB": wav_of(chunk(b"fmt ", most, form[8:]), data),
        "4 GiB of bext": wav_of(form, chunk(b"bext", most), data),
        "forms without end": wav_of(form * 100_000),
        "RF64 of 8 EiB": wav_of(chunk(b"ds64", 28, ds64), form, data, form=b"RF64"),
        "a table of 4 billion": wav_of(
            chunk(b"ds64", most, ds64[:-4] + b"\xff" * 4), form, data, form=b"RF64"
        ),
    }


def foreign_wav() -> dict[str, bytes]:
    """Make WAV files with codecs that the format allows and the sandbox does not."""
    data = clips.encoded("mp3", TONE)
    tags = {"ADPCM": 2, "IMA": 17, "MP3": 0x55, "AAC": 0xFF, "WMA": 0x161, "AC3": 0x2000}
    head = struct.Struct("<HHIIHH")
    return {
        name: wav_of(chunk(b"fmt ", 16, head.pack(tag, 1, 24_000, 8000, 1024, 4)), chunk(
            b"data", len(data), data))
        for name, tag in tags.items()
    }  # fmt: skip


def flac_with(*blocks: tuple[int, int, bytes]) -> bytes:
    """Insert metadata after STREAMINFO of a valid file: (type, declared length, bytes)."""
    good = clips.encoded("flac", TONE)
    size = int.from_bytes(good[5:8], "big")
    info = bytes([0]) + good[5 : 8 + size]
    more = b"".join(bytes([kind]) + said.to_bytes(3, "big") + held for kind, said, held in blocks)
    rest = good[8 + size :]
    if good[4] & 0x80:  # STREAMINFO was the last block; end with empty padding instead
        rest = b"\x81\0\0\0" + rest
    return b"fLaC" + info + more + rest


def picture(mime: bytes, said: int, held: bytes) -> tuple[int, int, bytes]:
    body = (
        struct.pack(">II", 3, len(mime)) + mime + bytes(4) + struct.pack(">4II", 1, 1, 8, 0, said)
    )
    return 6, len(body + held), body + held


def big_flac() -> dict[str, bytes]:
    many = [(4, 8, bytes(8))] * 100_000
    return {
        "8 MiB of picture": flac_with(picture(b"image/png", 8 * MIB, bytes(8 * MIB))),
        "8 MiB of padding": flac_with((1, 8 * MIB, bytes(8 * MIB))),
        "100,000 comments": flac_with(*many),
    }


def lying_flac() -> dict[str, bytes]:
    return {
        "16 MiB that are not there": flac_with((6, 2**24 - 1, b"")),
        "a picture of 4 GiB": flac_with(picture(b"image/png", 2**32 - 1, bytes(100))),
        "a picture's address": flac_with(picture(b"-->", 30, b"http://127.0.0.1:9/picture.png")),
        "4 billion comments": flac_with((4, 8, b"\0\0\0\0\xff\xff\xff\xff")),
    }


def foreign_containers() -> dict[str, bytes]:
    kinds = {"caf": "pcm_s16le", "au": "pcm_s16be", "avi": "pcm_s16le", "w64": "pcm_s16le",
             "mpegts": "aac", "nut": "flac"}  # fmt: skip
    return {kind: clips.contained(kind, codec, TONE) for kind, codec in kinds.items()}


def lying_containers() -> dict[str, bytes]:
    """Files whose tables and sizes promise far more than they have, or name other files."""
    m4a = clips.contained("ipod", "aac", TONE)
    webm = clips.contained("webm", "libopus", TONE)
    files = {"m4a, external": m4a.replace(b"url \0\0\0\1", b"url \0\0\0\0")}
    for box in (b"stsz", b"stts", b"stsc", b"stco", b"moov", b"mdat", b"trak", b"esds"):
        at = m4a.index(box)
        files[f"m4a, long {box!r}"] = m4a[: at - 4] + b"\x7f\xff\xff\xff" + m4a[at:]
        files[f"m4a, many {box!r}"] = m4a[: at + 8] + b"\x7f\xff\xff\xff" + m4a[at + 12 :]
    moov = m4a.index(b"moov") - 4
    size = int.from_bytes(m4a[moov : moov + 4], "big")
    files["m4a, tables alone"] = m4a[:moov][:32] + m4a[moov : moov + size] * 2000
    for at in range(40, 400, 12):
        files[f"webm, endless {at}"] = webm[:at] + b"\x01" + b"\xff" * 7 + webm[at + 8 :]
    files["webm, clusters"] = webm + webm[300:] * 300
    return files


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("clip.wav", bytes(4 * MIB))
    return file.getvalue()


#: Files that make libav, or another reader that detects formats, open a file or an address.
#: ``{there}`` is an address that listens, ``{file}`` a valid recording.
PLAYLISTS = {
    "m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{there}\n#EXTINF:9,\n{file}\n",
    "ffconcat": b"ffconcat version 1.0\nfile '{file}'\nfile '{there}'\n",
    "concat": b"concat:{file}|{there}\n",
    "pls": b"[playlist]\nFile1={file}\nFile2={there}\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
    "mpd": b'<?xml version="1.0"?><MPD><BaseURL>{there}</BaseURL></MPD>',
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="{there}"/></svg>',
    "pdf": b"%PDF-1.7\n1 0 obj<</S/URI/URI({there})>>endobj\n",
    "smil": b'<smil><body><audio src="{there}"/></body></smil>',
    "address": b"{there}",
    "name": b"{file}",
}


def playlists(there: str, file: str) -> dict[str, bytes]:
    return {
        name: text.replace(b"{there}", there.encode()).replace(b"{file}", file.encode())
        for name, text in PLAYLISTS.items()
    }
